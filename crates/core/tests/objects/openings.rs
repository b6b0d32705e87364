//! Ranks that open from one store: one rank of each node sends the requests of an opening.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tload::ranks::{finish_serving, give_up};
use tload::{
    Checkpoint, Error, ErrorKind, Group, LoadOptions, Loader, Location, OpenOptions, Report,
    Result, StoreOptions, Tensor,
};
use tload_testbed::{Fault, FaultyServer, Operation, Rule};
use tload_testing::{nodes_as_threads, ranks_as_threads};

use crate::fixtures::{
    assert_all, assert_same, even, folder, in_file_order, index, load_local, mixed,
};
use crate::sites::s3_options;

const PATIENCE: Duration = Duration::from_secs(60);

const SHARDS: [&str; 2] = [
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
];

/// Puts a checkpoint of two files into the store, and into a folder.
fn put(server: &FaultyServer) -> tempfile::TempDir {
    let folder = folder();
    let files = [mixed("a", 1, 40, 1 << 20), even("b", 2, 8, 1 << 20)];
    for (name, file) in SHARDS.iter().zip(&files) {
        std::fs::write(folder.path().join(name), file).expect("a temporary folder");
        server.put(&format!("models/m/{name}"), &**file);
    }
    folder
}

fn location(text: &str) -> Location {
    Location::parse(text).expect("a valid URL")
}

fn opening(store: StoreOptions, group: &Arc<dyn Group>) -> OpenOptions {
    let mut options = OpenOptions::from(store);
    options.group = Some(Arc::clone(group));
    options
}

/// Opens as `open` says and loads everything on every rank at once. A rank that cannot open tells
/// the others.
fn load_all(
    group: &[Arc<dyn Group>],
    open: impl Fn(usize, &Arc<dyn Group>) -> Result<Checkpoint> + Sync,
) -> Vec<Result<(Vec<Tensor>, Report)>> {
    let open = &open;
    let loaded = std::thread::scope(|scope| {
        let ranks = group.iter().enumerate().map(|(rank, group)| {
            scope.spawn(move || {
                let opened = open(rank, group);
                let opened = opened
                    .inspect_err(|error| give_up(&**group, error, &LoadOptions::default()))?;
                let loader = Loader::new(opened).options(in_file_order());
                let mut stream = loader.group(Arc::clone(group)).stream()?;
                let tensors = stream.by_ref().collect::<Result<Vec<_>>>()?;
                Ok((tensors, stream.report()))
            })
        });
        let ranks: Vec<_> = ranks.collect();
        let joined = ranks.into_iter().map(|rank| rank.join().expect("no panic"));
        joined.collect()
    });
    assert!(finish_serving(PATIENCE));
    loaded
}

/// Number of requests for the beginning of an object. A load that ends asks for one byte, to see
/// whether the object has changed.
fn openings(server: &FaultyServer, path: &str) -> usize {
    let requests = server.requests();
    let is_opening = |request: &&tload_testbed::Request| {
        let is_start = |range: &Range<u64>| range.start == 0 && range.end > 1;
        request.operation == Operation::Get
            && request.path == path
            && request.range.as_ref().is_some_and(is_start)
    };
    requests.iter().filter(is_opening).count()
}

fn lists(server: &FaultyServer) -> usize {
    let requests = server.requests();
    let lists = requests.iter().filter(|it| it.operation == Operation::List);
    lists.count()
}

#[test]
fn each_object_is_opened_once_per_node() {
    let server = FaultyServer::start();
    let folder = put(&server);
    let wanted = load_local(folder.path());
    let tensors = wanted.iter().map(|tensor| {
        let shard = if tensor.name().starts_with('a') {
            SHARDS[0]
        } else {
            SHARDS[1]
        };
        (tensor.name().to_owned(), shard)
    });
    let index = index(&tensors.collect::<Vec<_>>());
    for (ranks, nodes) in [(2, 1), (8, 1), (4, 2)] {
        for (url, is_list) in [
            ("s3://models/m", false),
            ("s3://models/m", true),
            ("s3://models/i", false),
        ] {
            server.forget_requests();
            if url.ends_with('i') {
                server.put("models/i/model.safetensors.index.json", &*index);
                for name in SHARDS {
                    let file = folder.path().join(name);
                    server.put(&format!("models/i/{name}"), crate::fixtures::read(&file));
                }
            }
            let (group, _network) = nodes_as_threads(nodes, ranks / nodes);
            let loaded = load_all(&group, |_, group| {
                let options = opening(s3_options(&server.url()), group);
                if is_list {
                    let files = SHARDS.map(|name| location(&format!("{url}/{name}")));
                    Checkpoint::open_all_with(&files, options)
                } else {
                    Checkpoint::open_with(location(url), options)
                }
            });
            let what = format!("{ranks} ranks, {nodes} nodes, {url}");
            for loaded in loaded {
                let (tensors, report) = loaded.expect("loads");
                assert_same(&tensors, &wanted);
                let group = report.group.expect("a load with a group");
                assert_eq!(group.node_ranks.len(), ranks / nodes, "{what}");
            }
            let place = url.trim_start_matches("s3://");
            let has_index = url.ends_with('i');
            let index = has_index.then_some("model.safetensors.index.json");
            for name in SHARDS.into_iter().chain(index) {
                assert_eq!(
                    openings(&server, &format!("{place}/{name}")),
                    nodes,
                    "{what}"
                );
            }
            assert_eq!(lists(&server), if is_list { 0 } else { nodes }, "{what}");
        }
    }
}

/// The errors of a load, by rank.
fn errors(loaded: Vec<Result<(Vec<Tensor>, Report)>>) -> Vec<Error> {
    let errors = loaded.into_iter().map(|it| it.expect_err("fails"));
    errors.collect()
}

#[test]
fn failed_opening_is_the_error_of_every_rank_of_the_node() {
    let server = FaultyServer::start();
    let folder = put(&server);
    server.fault(
        Rule::always(Fault::status(403, "AccessDenied"))
            .path(SHARDS[1])
            .on(Operation::Get),
    );
    let group = ranks_as_threads(3);
    let open = |_, group: &Arc<dyn Group>| {
        Checkpoint::open_with(
            location("s3://models/m"),
            opening(s3_options(&server.url()), group),
        )
    };
    for (rank, error) in errors(load_all(&group, open)).into_iter().enumerate() {
        assert_eq!(
            error.kind(),
            ErrorKind::PermissionDenied,
            "{}",
            error.chain()
        );
        let is_heard = error.message().starts_with("rank 0: ");
        assert_eq!(is_heard, rank > 0, "{}", error.chain());
        assert!(
            error.location().is_some_and(|it| it.ends_with(SHARDS[1])),
            "{error}"
        );
    }
    assert_eq!(openings(&server, &format!("models/m/{}", SHARDS[1])), 1);
    // The group can be used for another load.
    server.clear_faults();
    let wanted = load_local(folder.path());
    for loaded in load_all(&group, open) {
        assert_same(&loaded.expect("loads").0, &wanted);
    }
}

#[test]
fn rank_that_does_not_open_is_named_by_the_others() {
    let server = FaultyServer::start();
    let folder = put(&server);
    let group = ranks_as_threads(3);
    let open = |rank, group: &Arc<dyn Group>| {
        if rank == 1 {
            return Err(Error::new(ErrorKind::InvalidRequest, "it has another idea"));
        }
        Checkpoint::open_with(
            location("s3://models/m"),
            opening(s3_options(&server.url()), group),
        )
    };
    for (rank, error) in errors(load_all(&group, open)).into_iter().enumerate() {
        let expected = if rank == 1 {
            ErrorKind::InvalidRequest
        } else {
            ErrorKind::Peer
        };
        assert_eq!(error.kind(), expected, "{}", error.chain());
        assert!(
            error.message().contains("it has another idea"),
            "{}",
            error.chain()
        );
    }
    let wanted = load_local(folder.path());
    let together = |_, group: &Arc<dyn Group>| {
        Checkpoint::open_with(
            location("s3://models/m"),
            opening(s3_options(&server.url()), group),
        )
    };
    for loaded in load_all(&group, together) {
        assert_same(&loaded.expect("loads").0, &wanted);
    }
}

/// Some ranks have opened the checkpoint before, or write its location in another way.
#[test]
fn ranks_that_open_other_things_load_together() {
    let server = FaultyServer::start();
    let folder = put(&server);
    let wanted = load_local(folder.path());
    let store = || s3_options(&server.url());
    let before = Checkpoint::open_with(location("s3://models/m"), store()).expect("opens");
    for (other, is_open) in [(0, true), (1, true), (2, true), (1, false)] {
        let group = ranks_as_threads(3);
        let loaded = load_all(&group, |rank, group| match (rank == other, is_open) {
            (true, true) => Ok(before.clone()),
            (true, false) => {
                Checkpoint::open_with(location("s3://models/m/"), opening(store(), group))
            }
            (false, _) => Checkpoint::open_with(location("s3://models/m"), opening(store(), group)),
        });
        for loaded in loaded {
            let (tensors, report) = loaded.expect("loads");
            assert_same(&tensors, &wanted);
            let group = report.group.expect("a load with a group");
            assert_eq!(group.node_ranks, [0, 1, 2], "{group:?}");
        }
    }
}

/// Objects without a validator are compared by their bytes, which another rank has not seen.
#[test]
fn objects_without_validator_are_opened_by_every_rank() {
    let server = FaultyServer::start();
    server.leave_out_validators();
    let folder = put(&server);
    let wanted = load_local(folder.path());
    let group = ranks_as_threads(2);
    let loaded = load_all(&group, |_, group| {
        let mut store = s3_options(&server.url());
        store.set("allow_unversioned", "true").expect("an option");
        Checkpoint::open_with(location("s3://models/m"), opening(store, group))
    });
    for loaded in loaded {
        assert_same(&loaded.expect("loads").0, &wanted);
    }
    assert!(openings(&server, &format!("models/m/{}", SHARDS[0])) >= 2);
}

/// The index decides between copies of a tensor in two listed files. It is read once per node too.
#[test]
fn index_beside_listed_files_is_read_once_per_node() {
    let server = FaultyServer::start();
    let folder = folder();
    let [current, stale] = [1, 2].map(|seed| even("t", seed, 4, 1 << 20));
    std::fs::write(folder.path().join("a.safetensors"), &current).expect("a temporary folder");
    server.put("models/c/a.safetensors", &*current);
    server.put("models/c/b.safetensors", &*stale);
    let placed = (0..4).map(|number| (format!("t{number}"), "a.safetensors"));
    let index = index(&placed.collect::<Vec<_>>());
    server.put("models/c/model.safetensors.index.json", &*index);
    let wanted = load_local(folder.path());
    for (ranks, nodes) in [(3, 1), (4, 2)] {
        server.forget_requests();
        let (group, _network) = nodes_as_threads(nodes, ranks / nodes);
        let loaded = load_all(&group, |_, group| {
            let files =
                ["b", "a"].map(|name| location(&format!("s3://models/c/{name}.safetensors")));
            Checkpoint::open_all_with(&files, opening(s3_options(&server.url()), group))
        });
        for loaded in loaded {
            assert_same(&loaded.expect("loads").0, &wanted);
        }
        for name in [
            "a.safetensors",
            "b.safetensors",
            "model.safetensors.index.json",
        ] {
            let opened = openings(&server, &format!("models/c/{name}"));
            assert_eq!(opened, nodes, "{ranks} ranks, {nodes} nodes, {name}");
        }
        assert_eq!(lists(&server), nodes, "{ranks} ranks, {nodes} nodes");
    }
}

/// A note on the choice of files, and one on what the listing left out.
#[test]
fn notes_on_files_are_those_of_every_rank() {
    let server = FaultyServer::start();
    put(&server);
    let wanted = mixed("a", 1, 40, 1 << 20);
    server.put("models/m/model.safetensors", &*wanted);
    server.put("models/m//leftover.bin", "leftover");
    let store = || s3_options(&server.url());
    let alone = Checkpoint::open_with(location("s3://models/m"), store()).expect("opens");
    let notes = alone.notes();
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert!(notes.concat().contains(SHARDS[0]), "{notes:?}");
    assert!(notes.concat().contains("m//"), "{notes:?}");
    let group = ranks_as_threads(3);
    let loaded = load_all(&group, |_, group| {
        let opened = Checkpoint::open_with(location("s3://models/m"), opening(store(), group))?;
        assert_eq!(opened.notes(), notes);
        Ok(opened)
    });
    for loaded in loaded {
        let (tensors, report) = loaded.expect("loads");
        assert_all(&tensors, &[&wanted]);
        assert!(report.notes.starts_with(notes), "{:?}", report.notes);
    }
    // One alone, and one of the group.
    assert_eq!(lists(&server), 2);
}
