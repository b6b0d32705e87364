//! Object stores behind one interface: put objects and open them. One function per kind of store.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use object_store::limit::LimitStore;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::throttle::{ThrottleConfig, ThrottledStore};
use object_store::{ObjectStore, ObjectStoreExt};
use serde_json::json;
use tload::internal::storage::ObjectSource;
use tload::{Checkpoint, Location, OpenOptions, Protocol, Result, StoreClient, StoreOptions};
use tload_testbed::{
    Azurite, FakeGcs, FaultyServer, Hub, Moto, Nginx, Proxy, Registry, S3Server, S3sFs, Stream,
    Toxiproxy, Versitygw, require,
};

/// Bucket or container of all tests.
pub(crate) const BUCKET: &str = "models";

/// Bucket, container or web server.
pub(crate) struct Site {
    pub(crate) options: StoreOptions,
    /// Shares connections among openings of this site only.
    pub(crate) client: StoreClient,
    door: Door,
    put: Put,
}

/// Stores bytes under a key.
type Put = Box<dyn Fn(&str, &[u8])>;

/// Access to the objects.
enum Door {
    /// By URLs that begin with this text.
    Url(String),
    /// Through a store that the caller opened.
    Custom(Arc<dyn ObjectStore>),
}

impl Site {
    pub(crate) fn at(
        base: impl Into<String>,
        options: StoreOptions,
        put: impl Fn(&str, &[u8]) + 'static,
    ) -> Self {
        Self {
            options,
            client: StoreClient::new(),
            door: Door::Url(base.into()),
            put: Box::new(put),
        }
    }

    fn of(store: Arc<dyn ObjectStore>, memory: Arc<InMemory>) -> Self {
        Self {
            options: StoreOptions::new(),
            client: StoreClient::new(),
            door: Door::Custom(store),
            put: Box::new(move |key, bytes| put_in(&*memory, key, bytes)),
        }
    }

    /// Puts an object, or replaces it.
    pub(crate) fn put(&self, key: &str, bytes: &[u8]) {
        (self.put)(key, bytes);
    }

    /// Returns the location of an object or a prefix on a site that has URLs; encodes it where URLs
    /// are.
    pub(crate) fn location(&self, key: &str) -> Location {
        match &self.door {
            Door::Url(base) if base.starts_with("http") => {
                Location::parse(&format!("{base}/{}", encoded(key)))
            }
            Door::Url(base) => Location::parse(&format!("{base}/{key}")),
            Door::Custom(_) => Location::parse(""),
        }
        .expect("a valid URL")
    }

    pub(crate) fn has_urls(&self) -> bool {
        matches!(self.door, Door::Url(_))
    }

    /// Returns whether folders can be listed.
    pub(crate) fn lists(&self) -> bool {
        !self.has_urls() || self.location("a").protocol() != Some(Protocol::Http)
    }

    /// Returns whether every object is behind a redirect.
    pub(crate) fn redirects(&self) -> bool {
        matches!(&self.door, Door::Url(base) if base.ends_with("/redirect"))
    }

    pub(crate) fn object(&self, key: &str) -> ObjectSource {
        match &self.door {
            Door::Url(_) => ObjectSource::at(&self.location(key), &self.options),
            Door::Custom(store) => ObjectSource::from_store(Arc::clone(store), key, &self.options),
        }
        .expect("the object exists")
    }

    /// Opens a checkpoint of any site with this site's client.
    pub(crate) fn open(&self, location: Location, options: &StoreOptions) -> Result<Checkpoint> {
        let options = OpenOptions::from(options).client(self.client.clone());
        Checkpoint::open_with(location, options)
    }

    pub(crate) fn checkpoint(&self, path: &str) -> Result<Checkpoint> {
        match &self.door {
            Door::Url(_) => self.open(self.location(path), &self.options),
            Door::Custom(store) => Checkpoint::open_in(Arc::clone(store), path, &self.options),
        }
    }
}

/// Returns options of these pairs that ignore everything else on this machine.
pub(crate) fn options(pairs: &[(&str, &str)]) -> StoreOptions {
    let alone = [("environment", "false")];
    StoreOptions::from_pairs(alone.iter().chain(pairs).copied()).expect("valid options")
}

/// Puts an object into a store of `object_store`.
pub(crate) fn put_in(store: &dyn ObjectStore, key: &str, bytes: &[u8]) {
    let path = Path::parse(key).expect("a key");
    let bytes = bytes.to_vec();
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(store.put(&path, bytes.into()))
        .expect("puts in memory succeed");
}

/// Encodes a key for the path of a URL.
fn encoded(key: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    let each = key.bytes().map(|byte| {
        if plain(byte) {
            char::from(byte).to_string()
        } else {
            format!("%{byte:02X}")
        }
    });
    each.collect()
}

pub(crate) fn in_memory() -> Site {
    let memory = Arc::new(InMemory::new());
    Site::of(Arc::clone(&memory) as _, memory)
}

/// Every response is delayed by two milliseconds.
pub(crate) fn throttled() -> Site {
    let memory = Arc::new(InMemory::new());
    let config = ThrottleConfig {
        wait_get_per_call: Duration::from_millis(2),
        wait_list_with_delimiter_per_call: Duration::from_millis(2),
        ..ThrottleConfig::default()
    };
    let throttled = ThrottledStore::new(Arc::clone(&memory), config);
    Site::of(Arc::new(throttled), memory)
}

/// At most three requests at a time.
pub(crate) fn limited() -> Site {
    let memory = Arc::new(InMemory::new());
    let limited = LimitStore::new(Arc::clone(&memory), 3);
    Site::of(Arc::new(limited), memory)
}

pub(crate) fn s3_options(endpoint: &str) -> StoreOptions {
    options(&[
        ("endpoint", endpoint),
        ("region", "us-east-1"),
        ("access_key_id", "test"),
        ("secret_access_key", "testtest"),
    ])
}

/// Starts a server that fails on command, as S3.
pub(crate) fn faulty() -> Site {
    faulty_at(&Arc::new(FaultyServer::start()))
}

pub(crate) fn faulty_at(server: &Arc<FaultyServer>) -> Site {
    let base = format!("s3://{BUCKET}");
    let keeper = Arc::clone(server);
    Site::at(base, s3_options(&server.url()), move |key, bytes| {
        keeper.put(&format!("{BUCKET}/{key}"), bytes);
    })
}

/// A server that fails on command, as a plain web server.
pub(crate) fn faulty_web() -> Site {
    let server = Arc::new(FaultyServer::start());
    faulty_web_at(&server)
}

pub(crate) fn faulty_web_at(server: &Arc<FaultyServer>) -> Site {
    let keeper = Arc::clone(server);
    let base = format!("{}/{BUCKET}", server.url());
    Site::at(base, options(&[]), move |key, bytes| {
        keeper.put(&format!("{BUCKET}/{key}"), bytes);
    })
}

fn s3<Kind: 'static>(server: S3Server<Kind>) -> Site {
    let mut options = s3_options(&server.endpoint());
    if let Some(file) = server.ca_file() {
        let file = file.to_str().expect("a UTF-8 path");
        options.set("ca_file", file).expect("an option");
    }
    let base = format!("s3://{BUCKET}");
    Site::at(base, options, move |key, bytes| {
        server.put(BUCKET, key, bytes).expect("the put succeeds");
    })
}

pub(crate) fn versitygw() -> Option<Site> {
    require(Versitygw::start()).map(s3)
}

pub(crate) fn versitygw_tls() -> Option<Site> {
    require(Versitygw::start_tls()).map(s3)
}

pub(crate) fn s3s_fs() -> Option<Site> {
    require(S3sFs::start()).map(s3)
}

pub(crate) fn moto() -> Option<Site> {
    require(Moto::start()).map(s3)
}

/// Starts versitygw behind a proxy, and returns the proxy too.
pub(crate) fn proxied() -> Option<(Site, Arc<Proxy>)> {
    let toxiproxy = require(Toxiproxy::start())?;
    let server = require(Versitygw::start())?;
    let proxy = Arc::new(toxiproxy.proxy(server.address()).expect("a proxy"));
    let options = s3_options(&format!("http://{}", proxy.address()));
    let kept = Arc::clone(&proxy);
    let put = move |key: &str, bytes: &[u8]| {
        let _ = &kept;
        server.put(BUCKET, key, bytes).expect("the put succeeds");
    };
    Some((Site::at(format!("s3://{BUCKET}"), options, put), proxy))
}

/// Starts versitygw behind a proxy that splits everything into small pieces.
pub(crate) fn sliced() -> Option<Site> {
    let (site, proxy) = proxied()?;
    let slices = json!({"average_size": 3000, "size_variation": 2900, "delay": 0});
    proxy
        .toxic("slicer", &slices, Stream::Downstream, 1.0)
        .expect("a toxic");
    Some(site)
}

pub(crate) fn gcs_options(server: &FakeGcs) -> StoreOptions {
    options(&[("endpoint", &server.base_url()), ("anonymous", "true")])
}

pub(crate) fn fake_gcs() -> Option<Site> {
    let server = require(FakeGcs::start())?;
    let options = gcs_options(&server);
    Some(Site::at(
        format!("gs://{BUCKET}"),
        options,
        move |key, bytes| server.put(BUCKET, key, bytes).expect("the put succeeds"),
    ))
}

pub(crate) fn azure_options(server: &Azurite) -> StoreOptions {
    options(&[
        ("endpoint", &server.endpoint()),
        ("account", server.account()),
        ("account_key", server.key()),
    ])
}

pub(crate) fn azurite() -> Option<Site> {
    let server = require(Azurite::start())?;
    let options = azure_options(&server);
    Some(Site::at(
        format!("az://{BUCKET}"),
        options,
        move |key, bytes| server.put(BUCKET, key, bytes).expect("the put succeeds"),
    ))
}

/// Layers of an artifact, by name.
type Layers = BTreeMap<String, serde_json::Value>;

/// Starts a registry with one artifact, which is pushed again with each file.
pub(crate) fn registry() -> Option<Site> {
    let server = require(Registry::start())?;
    let layers = RefCell::new(Layers::new());
    let base = format!("oci://{}/{BUCKET}:v1", server.address());
    Some(Site::at(base, options(&[]), move |key, bytes| {
        let kind = "application/vnd.cncf.model.weight.v1.raw";
        let annotations = json!({"org.cncf.model.filepath": key});
        let layer = server.layer(BUCKET, kind, &annotations, bytes);
        let mut layers = layers.borrow_mut();
        layers.insert(key.to_owned(), layer.expect("the blob is stored"));
        let all: Vec<_> = layers.values().cloned().collect();
        server.push(BUCKET, "v1", &all).expect("the push succeeds");
    }))
}

/// Starts a hub with a content store. Each object is in a commit of its own.
pub(crate) fn hub_xet() -> Site {
    let hub = Hub::start();
    hub.keep_in_xet();
    let options = options(&[("endpoint", &hub.url())]);
    let repository = format!("org/{BUCKET}");
    Site::at(format!("hf://{repository}"), options, move |key, bytes| {
        hub.commit(&repository, "main", &[(key, bytes)]);
    })
}

/// Starts an nginx whose files are below `path` of the address that `url` picks.
fn nginx_at(
    url: impl Fn(&Nginx) -> String,
    path: &str,
    pairs: impl Fn(&Nginx) -> Vec<(&'static str, String)>,
) -> Option<Site> {
    let server = require(Nginx::start())?;
    let base = format!("{}{path}", url(&server));
    let mut options = options(&[]);
    for (key, value) in pairs(&server) {
        options.set(key, value).expect("an option");
    }
    Some(Site::at(base, options, move |key, bytes| {
        server.put(key, bytes).expect("a file");
    }))
}

pub(crate) fn nginx() -> Option<Site> {
    nginx_at(Nginx::url, "", |_| Vec::new())
}

pub(crate) fn nginx_tls() -> Option<Site> {
    let ca_file = |server: &Nginx| server.ca_file().to_str().expect("a path").to_owned();
    nginx_at(Nginx::tls_url, "", |server| {
        vec![("ca_file", ca_file(server))]
    })
}

/// Starts an nginx with user and password in the URL.
pub(crate) fn nginx_basic() -> Option<Site> {
    let url = |server: &Nginx| {
        let user = format!("http://{}:{}@", server.user(), server.password());
        server.url().replace("http://", &user)
    };
    nginx_at(url, "/basic", |_| Vec::new())
}

/// Sends neither `ETag` nor `Last-Modified`.
pub(crate) fn nginx_bare() -> Option<Site> {
    nginx_at(Nginx::url, "/bare", |_| Vec::new())
}

/// Every file is behind a redirect.
pub(crate) fn nginx_redirect() -> Option<Site> {
    nginx_at(Nginx::url, "/redirect", |_| Vec::new())
}

/// Defines one test for each of these sites.
macro_rules! on_sites {
    ($check:ident: $($site:ident),* $(,)?) => {
        mod $check {
            $(
                #[test]
                fn $site() {
                    let site: Option<crate::sites::Site> = crate::sites::$site().into();
                    if let Some(site) = site {
                        super::$check(&std::rc::Rc::new(site));
                    }
                }
            )*
        }
    };
}
pub(crate) use on_sites;

/// Defines one test for every server and every way to reach it, and for further sites.
macro_rules! on_all_sites {
    ($check:ident $(, $further:ident)*) => {
        crate::sites::on_sites!(
            $check: in_memory, throttled, limited, faulty, faulty_web, versitygw, versitygw_tls, s3s_fs, moto, fake_gcs,
            azurite, nginx, nginx_tls, nginx_basic, nginx_redirect, registry, sliced $(, $further)*,
        );
    };
}
pub(crate) use on_all_sites;
