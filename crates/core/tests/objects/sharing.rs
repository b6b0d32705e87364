//! Ranks that load from one store: what several of them want is requested once.

use std::time::Duration;

use tload::ranks::finish_serving;
use tload::report::GroupReport;
use tload::{
    Checkpoint, Indices, LoadOptions, Loader, Location, Order, Report, Result, Slice, Tensor,
};
use tload_testbed::FaultyServer;
use tload_testing::ranks_as_threads;

use crate::fixtures::{assert_same, even, folder, load_local, mixed, options};
use crate::sites::s3_options;

type Loaded = (Vec<Tensor>, Report);

/// Loads on `size` ranks at once; `set` makes the loader of each. Returns what each loaded, and the
/// bytes that the server sent meanwhile.
fn load_all(
    server: &FaultyServer,
    size: usize,
    set: impl Fn(usize, Loader) -> Loader + Sync,
) -> (Vec<Loaded>, u64) {
    let location = Location::parse("s3://models/m").expect("a valid URL");
    let open = || Checkpoint::open_with(&location, s3_options(&server.url())).expect("opens");
    let loaders: Vec<Loader> = (0..size)
        .map(|rank| set(rank, Loader::new(open())))
        .collect();
    let before = server.counts().body_bytes;
    let loaded = std::thread::scope(|scope| {
        let ranks = ranks_as_threads(size).into_iter().zip(loaders);
        let ranks: Vec<_> = ranks
            .map(|(group, loader)| {
                scope.spawn(move || {
                    let mut stream = loader.group(group).stream()?;
                    let tensors = stream.by_ref().collect::<Result<Vec<_>>>()?;
                    Ok::<_, tload::Error>((tensors, stream.report()))
                })
            })
            .collect();
        let joined = ranks.into_iter().map(|rank| rank.join().expect("no panic"));
        let joined = joined.collect::<Result<Vec<_>>>().expect("loads");
        assert!(finish_serving(Duration::from_secs(60)));
        joined
    });
    (loaded, server.counts().body_bytes - before)
}

fn of_group(report: &Report) -> &GroupReport {
    report.group.as_ref().expect("a load with a group")
}

/// Asserts that the server sent each byte that some rank wants once; lists come in addition.
fn assert_sent_once(sent: u64, loaded: &[Loaded]) {
    let unique = of_group(&loaded[0].1).unique_bytes;
    assert!(
        unique <= sent && sent < unique + 64 * 1024,
        "{sent} bytes for {unique}"
    );
}

/// Returns options for loads whose bytes are counted: those of a hedged request are sent twice.
fn unhedged() -> LoadOptions {
    options(|it| {
        it.order = Order::File;
        it.hedge = Some(false);
    })
}

/// Puts a checkpoint of two files into the store and into a folder.
fn put(server: &FaultyServer) -> tempfile::TempDir {
    let folder = folder();
    let files = [mixed("a", 1, 40, 3 << 20), even("b", 2, 8, 4 << 20)];
    for (index, file) in files.iter().enumerate() {
        let name = format!("model-{:05}-of-00002.safetensors", index + 1);
        std::fs::write(folder.path().join(&name), file).expect("a temporary folder");
        server.put(&format!("models/m/{name}"), &**file);
    }
    folder
}

#[test]
fn ranks_that_want_everything_request_it_once() {
    let server = FaultyServer::start();
    let folder = put(&server);
    let wanted = load_local(folder.path());
    for size in [2, 8] {
        let everything = |_, loader: Loader| loader.options(unhedged());
        let (loaded, sent) = load_all(&server, size, everything);
        for (tensors, _) in &loaded {
            assert_same(tensors, &wanted);
        }
        assert_sent_once(sent, &loaded);
    }
}

#[test]
fn ranks_request_rows_of_their_own_once() {
    let server = FaultyServer::start();
    let folder = put(&server);
    let wanted = load_local(folder.path());
    let slice = |rank: usize| Slice::new([Indices::from(rank << 20..(rank + 1) << 20)]);
    let slices = |rank: usize| (0..8).map(move |index| (format!("b{index}"), slice(rank)));
    let rows = |rank: usize, loader: Loader| loader.options(unhedged()).slices(slices(rank));
    let (loaded, sent) = load_all(&server, 4, rows);
    for (rank, (tensors, report)) in loaded.iter().enumerate() {
        assert_eq!(tensors.len(), wanted.len());
        for tensor in tensors {
            let whole = wanted.iter().find(|it| it.name() == tensor.name());
            let whole = whole.expect("loaded too").bytes();
            let rows = tensor.name().starts_with('b');
            let part = if rows {
                &whole[rank << 20..(rank + 1) << 20]
            } else {
                whole
            };
            assert!(tensor.bytes() == part, "{}: bytes", tensor.name());
        }
        assert!(report.received_bytes > 0, "{report}");
    }
    assert_sent_once(sent, &loaded);
}
