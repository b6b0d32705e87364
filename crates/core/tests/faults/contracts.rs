//! Contracts of sources and engines over storage that is short, late and failing: files on
//! `slowfs`, objects on the faulty server. The contract of sinks over a slow driver is tested in
//! `tests/cuda/sinks.rs`.

use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tload::CacheMode;
use tload::Location;
use tload::extend::CancelFlag;
use tload::internal::engine::{self, EngineKind, EngineSetup, ObjectSetup};
use tload::internal::storage::{FileSource, ObjectSource, ReadFile, RefusedDirect};
use tload_testbed::slowfs::{Fault as FileFault, Mount, Options as Slowness, Rule as FileRule};
use tload_testbed::{Fault, FaultyServer, Operation, Rule};
use tload_testing::conformance::{
    EngineRequest, EngineUnderTest, SourceUnderTest, Trouble, TroubledEngine, engine_suite,
    source_suite, troubled_engine_suite,
};

use crate::bench::alone;
use crate::files::{folder, write};
use crate::on_objects::options_at;
use crate::requirement::{self, requirement};

/// A folder whose files are read through a mount that fails on command.
struct Shown {
    backing: TempDir,
    mount: Mount,
    opened: Cell<usize>,
}

impl Shown {
    fn start() -> Option<Rc<Self>> {
        let backing = folder();
        let slowness = Slowness {
            direct: true,
            ttl: Duration::ZERO,
            ..Slowness::default()
        };
        let mount = Mount::start("on_files::serves", backing.path(), &slowness);
        Some(Rc::new(Self {
            mount: requirement("fuse", mount)?,
            backing,
            opened: Cell::new(0),
        }))
    }

    /// Returns an unused name.
    fn next(&self) -> String {
        self.opened.replace(self.opened.get() + 1).to_string()
    }

    fn source(&self, name: &Path) -> FileSource {
        let path = self.mount.path().join(name);
        FileSource::open(&Location::from_path(&path)).expect("just written")
    }

    /// Writes the files of a request and opens them for a load.
    fn files(&self, request: &EngineRequest<'_>) -> Arc<[ReadFile]> {
        let here = self.next();
        let refused = RefusedDirect::default();
        let open = |(index, bytes): (usize, &Vec<u8>)| {
            let name = Path::new(&here).join(index.to_string());
            let path = write(&self.backing.path().join(&name), bytes);
            let source = self.source(&name);
            let file = ReadFile::open(source, CacheMode::Auto, &refused).expect("opens");
            if let Some(shrink) = request.shrink.filter(|shrink| shrink.source == index) {
                let file = std::fs::OpenOptions::new().write(true).open(&path);
                file.and_then(|file| file.set_len(shrink.len as u64))
                    .expect("writable");
            }
            file
        };
        request.contents.iter().enumerate().map(open).collect()
    }

    fn engine(&self, (kind, strip_bytes): Variant, request: &EngineRequest<'_>) -> EngineUnderTest {
        let files = self.files(request);
        let alignment = files.iter().map(ReadFile::alignment).max().unwrap_or(1);
        let setup = EngineSetup {
            strip_bytes,
            ..EngineSetup::new(files, request.depth)
        };
        EngineUnderTest {
            engine: engine::open(kind, true, &setup).expect("opens").engine,
            alignment: usize::try_from(alignment).expect("small"),
            remote: false,
            keep: Box::new(()),
        }
    }

    /// Sets how reads behave from now on.
    fn behave(&self, trouble: Trouble) {
        self.mount.clear_faults();
        let eio = FileFault::Errno(libc::EIO);
        match trouble {
            Trouble::None => {}
            Trouble::Fails => self.mount.fault(&FileRule::always(eio).file("/1")),
            Trouble::FailsNowAndThen => self.mount.fault(&FileRule::always(eio).every(3)),
            Trouble::Short => {
                for bytes in [4097, 70_001] {
                    let short = FileRule::always(FileFault::Short(bytes));
                    self.mount.fault(&short.every(2));
                }
            }
        }
    }
}

/// Engine, and the length of the strips in which its threads fill a job together.
type Variant = (EngineKind, Option<usize>);

fn variants() -> Vec<Variant> {
    let engines = requirement::engines().into_iter();
    let kinds = engines.map(|it| engine::choose(it, &[], None).0);
    let together = [(EngineKind::Pread, Some(1))];
    kinds.map(|kind| (kind, None)).chain(together).collect()
}

#[test]
fn file_engines_keep_contract_over_short_reads() {
    let _alone = alone();
    let Some(shown) = Shown::start() else { return };
    shown.behave(Trouble::Short);
    for variant in variants() {
        let name = format!("{variant:?}, short reads");
        engine_suite(&name, &|request| shown.engine(variant, request));
    }
}

#[test]
fn file_engines_keep_contract_over_failures() {
    let _alone = alone();
    let Some(shown) = Shown::start() else { return };
    for variant in variants() {
        troubled_engine_suite(&format!("{variant:?}"), &|request| {
            shown.behave(Trouble::None);
            let storage = Rc::clone(&shown);
            TroubledEngine {
                under_test: shown.engine(variant, request),
                storage: Box::new(move |trouble| storage.behave(trouble)),
            }
        });
    }
}

#[test]
fn file_sources_keep_contract_over_short_reads() {
    let _alone = alone();
    let Some(shown) = Shown::start() else { return };
    shown.behave(Trouble::Short);
    source_suite("files, short reads", &|bytes| {
        let name = shown.next();
        let path = write(&shown.backing.path().join(&name), bytes);
        let source = shown.source(Path::new(&name));
        let replace = move |bytes: &[u8]| {
            let beside = write(&path.with_extension("new"), bytes);
            std::fs::rename(beside, &path).expect("the same folder");
        };
        SourceUnderTest {
            source: Box::new(source),
            replace: Box::new(replace),
        }
    });
}

/// A store whose requests fail on command.
struct Store {
    server: FaultyServer,
    opened: Cell<usize>,
}

impl Store {
    fn start() -> Rc<Self> {
        Rc::new(Self {
            server: FaultyServer::start(),
            opened: Cell::new(0),
        })
    }

    fn put(&self, bytes: &[u8]) -> String {
        let name = format!("{:04}", self.opened.replace(self.opened.get() + 1));
        self.server.put(&format!("models/{name}"), bytes);
        name
    }

    fn source(&self, name: &str) -> ObjectSource {
        let location = Location::parse(&format!("s3://models/{name}")).expect("a URL");
        // Times out early: nothing stalls here, and failures should end soon.
        ObjectSource::at(&location, &options_at(&self.server.url(), "20"))
            .expect("the object exists")
    }

    /// Returns the engine and the name of the second object.
    fn engine(&self, request: &EngineRequest<'_>) -> (EngineUnderTest, String) {
        let mut names = Vec::new();
        for (index, bytes) in request.contents.iter().enumerate() {
            let name = self.put(bytes);
            let source = self.source(&name);
            if let Some(shrink) = request.shrink.filter(|shrink| shrink.source == index) {
                self.server
                    .put(&format!("models/{name}"), &bytes[..shrink.len]);
            }
            names.push((name, source));
        }
        let second = names.get(1).map(|(name, _)| name.clone());
        let setup = ObjectSetup {
            in_flight_bytes: None,
            objects: names.into_iter().map(|(_, source)| source).collect(),
            connections: 4,
            request_bytes: 200_000,
            total_bytes: 0,
            retries: None,
            hedge: true,
            depth: request.depth,
            arrived: Arc::default(),
            cancel: Arc::<CancelFlag>::default(),
        };
        let under_test = EngineUnderTest {
            engine: engine::open_objects(&Arc::new(setup)).engine,
            alignment: 1,
            remote: true,
            keep: Box::new(()),
        };
        (under_test, second.unwrap_or_default())
    }

    fn behave(&self, trouble: Trouble, second: &str) {
        self.server.clear_faults();
        let fail = Fault::status(500, "InternalError");
        match trouble {
            Trouble::None => {}
            Trouble::Fails => self.server.fault(Rule::always(fail).path(second)),
            Trouble::FailsNowAndThen => self.server.fault(Rule::always(fail).every(3)),
            Trouble::Short => {
                for fault in [Fault::CutBody(70_001), Fault::ShortBody(333)] {
                    self.server
                        .fault(Rule::always(fault).on(Operation::Get).every(4));
                }
            }
        }
    }
}

#[test]
fn object_engine_keeps_contract_over_failures() {
    let _alone = alone();
    let store = Store::start();
    troubled_engine_suite("objects", &|request| {
        store.behave(Trouble::None, "");
        let (under_test, second) = store.engine(request);
        let storage = Rc::clone(&store);
        TroubledEngine {
            under_test,
            storage: Box::new(move |trouble| storage.behave(trouble, &second)),
        }
    });
}

#[test]
fn object_sources_keep_contract_over_failures() {
    let _alone = alone();
    let store = Store::start();
    let broken = Fault::status(500, "InternalError");
    store.server.fault(Rule::always(broken).every(5));
    source_suite("objects, one request in five fails", &|bytes| {
        let name = store.put(bytes);
        let source = store.source(&name);
        let store = Rc::clone(&store);
        SourceUnderTest {
            source: Box::new(source),
            replace: Box::new(move |bytes| {
                store.server.put(&format!("models/{name}"), bytes);
            }),
        }
    });
}
