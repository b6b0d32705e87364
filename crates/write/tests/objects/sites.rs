//! Servers that tests write to.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use tload_base::options::{Location, StoreOptions};
use tload_format::Dtype;
use tload_testbed::{Azurite, Moto, S3Server, Versitygw, require};
use tload_write::WriteOptions;

use crate::expected::Tensors;

pub(crate) const BUCKET: &str = "models";

/// Bucket or container of a server that runs.
pub(crate) struct Site {
    pub(crate) name: &'static str,
    pub(crate) base: String,
    pub(crate) pairs: Vec<(String, String)>,
    /// Address of the server.
    pub(crate) address: String,
    store: Box<dyn Fn() -> Arc<dyn ObjectStore>>,
    _server: Box<dyn Any>,
}

impl Site {
    pub(crate) fn options(&self) -> StoreOptions {
        let pairs = self.pairs.iter();
        StoreOptions::from_pairs(pairs.map(|(key, value)| (&**key, &**value))).expect("valid")
    }

    pub(crate) fn location(&self, prefix: &str) -> Location {
        Location::parse(&format!("{}/{prefix}", self.base)).expect("a URL")
    }

    pub(crate) fn writing(&self) -> WriteOptions {
        WriteOptions::new().store(self.options()).replace(true)
    }

    fn run<T>(&self, work: impl AsyncFnOnce(Arc<dyn ObjectStore>) -> T) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(work((self.store)()))
    }

    /// Returns the names and bytes of the objects directly below a prefix.
    pub(crate) fn objects(&self, prefix: &str) -> BTreeMap<String, Vec<u8>> {
        self.run(async |store| {
            let listed = store.list_with_delimiter(Some(&Path::from(prefix))).await;
            let mut found = BTreeMap::new();
            for object in listed.expect("is listed").objects {
                let name = object.location.filename().expect("has one").to_owned();
                let bytes = store.get(&object.location).await.expect("is read");
                found.insert(name, bytes.bytes().await.expect("is read").to_vec());
            }
            found
        })
    }

    pub(crate) fn put(&self, key: &str, bytes: &[u8]) {
        let bytes = bytes.to_vec();
        self.run(async |store| store.put(&Path::from(key), bytes.into()).await)
            .expect("is put");
    }

    /// Reads the checkpoint below a prefix by its index; `None` if there is none.
    pub(crate) fn read(&self, prefix: &str) -> Option<Tensors> {
        let objects = self.objects(prefix);
        let index = objects.get("model.safetensors.index.json")?;
        let index: serde_json::Value = serde_json::from_slice(index).expect("is JSON");
        let map = index["weight_map"].as_object().expect("a map");
        let mut found = Tensors::new();
        for (name, file) in map {
            let bytes = &objects[file.as_str().expect("a name")];
            let file = safetensors::SafeTensors::deserialize(bytes).expect("a file");
            let tensor = file.tensor(name).expect("is there");
            let dtype = Dtype::try_from(tensor.dtype()).expect("known");
            let shape = tensor.shape().iter().map(|&dim| dim as u64).collect();
            found.insert(name.clone(), (dtype, shape, tensor.data().to_vec()));
        }
        Some(found)
    }
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    let alone = [("environment", "false")];
    let all = alone.iter().chain(pairs);
    all.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

fn s3<Kind: 'static>(name: &'static str, server: S3Server<Kind>) -> Site {
    server.put(BUCKET, "other/object", b"x").expect("is put");
    let endpoint = server.endpoint();
    let builder = object_store::aws::AmazonS3Builder::new()
        .with_endpoint(&endpoint)
        .with_region("us-east-1")
        .with_access_key_id("test")
        .with_secret_access_key("testtest")
        .with_bucket_name(BUCKET)
        .with_allow_http(true);
    Site {
        name,
        base: format!("s3://{BUCKET}"),
        pairs: pairs(&[
            ("endpoint", &endpoint),
            ("region", "us-east-1"),
            ("access_key_id", "test"),
            ("secret_access_key", "testtest"),
        ]),
        address: server.address().to_owned(),
        store: Box::new(move || Arc::new(builder.clone().build().expect("is built"))),
        _server: Box::new(server),
    }
}

pub(crate) fn versitygw() -> Option<Site> {
    require(Versitygw::start()).map(|server| s3("versitygw", server))
}

pub(crate) fn moto() -> Option<Site> {
    require(Moto::start()).map(|server| s3("moto", server))
}

pub(crate) fn azurite() -> Option<Site> {
    let server = require(Azurite::start())?;
    server.put(BUCKET, "other/object", b"x").expect("is put");
    let endpoint = server.endpoint();
    let builder = object_store::azure::MicrosoftAzureBuilder::new()
        .with_endpoint(endpoint.clone())
        .with_account(server.account())
        .with_access_key(server.key())
        .with_container_name(BUCKET)
        .with_allow_http(true);
    Some(Site {
        name: "azurite",
        base: format!("az://{BUCKET}"),
        pairs: pairs(&[
            ("endpoint", &endpoint),
            ("account", server.account()),
            ("account_key", server.key()),
        ]),
        address: String::new(),
        store: Box::new(move || Arc::new(builder.clone().build().expect("is built"))),
        _server: Box::new(server),
    })
}

/// Runs a test on each kind of server that is installed.
pub(crate) fn on_each(test: impl Fn(&Site)) {
    for site in [versitygw(), moto(), azurite()].into_iter().flatten() {
        test(&site);
    }
}
