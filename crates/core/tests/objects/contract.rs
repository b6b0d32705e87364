//! The contracts of sources and engines, for every object store; the contract of sources, for the
//! other sources.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use tload::Location;
use tload::extend::CancelFlag;
use tload::internal::engine::{self, ObjectSetup};
use tload::internal::storage::{FileSource, MemorySource, ObjectSource};
use tload_testing::conformance::{
    EngineRequest, EngineUnderTest, SourceUnderTest, engine_suite, source_suite,
};

use crate::fixtures::folder;
use crate::sites::{Site, on_all_sites, on_sites};

fn sources(site: &Rc<Site>) {
    let opened = Cell::new(0);
    source_suite("objects", &|bytes| {
        let key = format!("sources/{}", opened.replace(opened.get() + 1));
        site.put(&key, bytes);
        let source = site.object(&key);
        let site = Rc::clone(site);
        SourceUnderTest {
            source: Box::new(source),
            replace: Box::new(move |bytes| site.put(&key, bytes)),
        }
    });
}

on_all_sites!(sources, hub_xet);

fn open_engine(site: &Site, folder: usize, request: &EngineRequest<'_>) -> EngineUnderTest {
    let open = |(index, bytes): (usize, &Vec<u8>)| -> ObjectSource {
        let key = format!("engines/{folder}/{index}");
        site.put(&key, bytes);
        let source = site.object(&key);
        if let Some(shrink) = request.shrink.filter(|shrink| shrink.source == index) {
            site.put(&key, &bytes[..shrink.len]);
        }
        source
    };
    let setup = ObjectSetup {
        in_flight_bytes: None,
        objects: request.contents.iter().enumerate().map(open).collect(),
        connections: 6,
        request_bytes: 4 << 20,
        total_bytes: 0,
        retries: None,
        hedge: true,
        depth: request.depth,
        arrived: Arc::default(),
        cancel: Arc::<CancelFlag>::default(),
    };
    let opened = engine::open_objects(&Arc::new(setup));
    assert_eq!((opened.name, opened.refusal), ("object", None));
    EngineUnderTest {
        engine: opened.engine,
        alignment: 1,
        remote: true,
        keep: Box::new(()),
    }
}

fn engines(site: &Rc<Site>) {
    let opened = Cell::new(0);
    engine_suite("objects", &|request| {
        open_engine(site, opened.replace(opened.get() + 1), request)
    });
}

on_sites!(engines: in_memory, faulty, faulty_web, versitygw, fake_gcs, azurite, nginx, sliced);

#[test]
fn files_keep_source_contract() {
    let folder = folder();
    let opened = Cell::new(0);
    source_suite("files", &|bytes| {
        let path = folder
            .path()
            .join(opened.replace(opened.get() + 1).to_string());
        std::fs::write(&path, bytes).expect("a temporary folder");
        let source = FileSource::open(&Location::from_path(&path)).expect("just written");
        let replace = move |bytes: &[u8]| {
            // Written beside and renamed over, as downloaders do it.
            let beside = path.with_extension("new");
            std::fs::write(&beside, bytes).expect("a temporary folder");
            std::fs::rename(&beside, &path).expect("the same folder");
        };
        SourceUnderTest {
            source: Box::new(source),
            replace: Box::new(replace),
        }
    });
}

#[test]
fn memory_keeps_source_contract() {
    source_suite("memory", &|bytes| SourceUnderTest {
        source: Box::new(MemorySource::new("m", bytes)),
        replace: Box::new(|_| {}),
    });
}
