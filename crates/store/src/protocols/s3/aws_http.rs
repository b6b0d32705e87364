//! HTTP client of the AWS SDK: the store's own, so that certificates, proxy and timeouts that the
//! options and the environment name count for the services of credentials, too.
//!
//! Follows no redirects and sends no headers of options. Called by the SDK on behalf of `aws.rs`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use object_store::ClientOptions;

use crate::http::connector::{Connector, LazyClient};
use crate::http::pages::{ANSWER_MAX, TooLong};
use crate::sync::lock::Mutex;

/// Timeouts of connecting, and of a silent server.
type Timeouts = (Option<Duration>, Option<Duration>);

/// Makes the SDK's clients, one for each of its timeouts.
#[derive(Clone)]
pub(crate) struct SdkHttp {
    connector: Connector,
    options: Arc<ClientOptions>,
    made: Arc<Mutex<Vec<(Timeouts, SdkClient)>>>,
}

impl SdkHttp {
    pub(crate) fn new(connector: Connector, options: ClientOptions) -> Self {
        Self {
            connector,
            // The credential services of machines and containers have no TLS.
            options: Arc::new(options.with_allow_http(true)),
            made: Arc::default(),
        }
    }

    fn make(&self, (connect, read): Timeouts) -> SdkClient {
        let mut options = (*self.options).clone();
        if let Some(timeout) = connect {
            options = options.with_connect_timeout(timeout);
        }
        if let Some(timeout) = read {
            options = options.with_read_timeout(timeout);
        }
        let client = self.connector.client(&options);
        SdkClient(client.map(Arc::new).map_err(|error| error.to_string()))
    }
}

impl fmt::Debug for SdkHttp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SdkHttp").finish_non_exhaustive()
    }
}

impl HttpClient for SdkHttp {
    fn http_connector(
        &self,
        settings: &HttpConnectorSettings,
        _components: &RuntimeComponents,
    ) -> SharedHttpConnector {
        let timeouts = (settings.connect_timeout(), settings.read_timeout());
        let mut made = self.made.lock();
        if let Some((_, client)) = made.iter().find(|(of, _)| *of == timeouts) {
            return SharedHttpConnector::new(client.clone());
        }
        let client = self.make(timeouts);
        made.push((timeouts, client.clone()));
        SharedHttpConnector::new(client)
    }
}

/// Client, or why there is none.
#[derive(Clone, Debug)]
struct SdkClient(Result<Arc<LazyClient>, String>);

impl HttpConnector for SdkClient {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let client = self.0.clone();
        HttpConnectorFuture::new(async move {
            let client = client.map_err(|reason| ConnectorError::user(reason.into()))?;
            send(&client, request).await
        })
    }
}

async fn send(client: &LazyClient, request: HttpRequest) -> Result<HttpResponse, ConnectorError> {
    let user = |error: Box<dyn std::error::Error + Send + Sync>| ConnectorError::user(error);
    let request = request.try_into_http1x().map_err(|it| user(it.into()))?;
    // Requests for credentials are short texts in memory.
    let request = request.map(|body| body.bytes().map(<[u8]>::to_vec).unwrap_or_default());
    client.admit(request.uri()).map_err(|it| user(it.into()))?;
    let request = reqwest::Request::try_from(request).map_err(|it| user(it.into()))?;
    let client = client.get().map_err(|it| user(it.into()))?;
    let mut response = client.execute(request).await.map_err(failed)?;
    let mut head = http::Response::new(()).into_parts().0;
    head.status = response.status();
    head.headers = std::mem::take(response.headers_mut());
    let mut body = Vec::new();
    while let Some(bytes) = response.chunk().await.map_err(failed)? {
        if bytes.len() > ANSWER_MAX - body.len() {
            return Err(ConnectorError::other(TooLong.into(), None));
        }
        body.extend_from_slice(&bytes);
    }
    let response = http::Response::from_parts(head, body.into());
    HttpResponse::try_from(response).map_err(|it| ConnectorError::other(it.into(), None))
}

/// Translates a failure without a response. Its URL is left out: it may hold a secret.
fn failed(error: reqwest::Error) -> ConnectorError {
    let is_timeout = error.is_timeout();
    let error = error.without_url().into();
    if is_timeout {
        ConnectorError::timeout(error)
    } else {
        ConnectorError::io(error)
    }
}
