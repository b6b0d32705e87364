//! Loads of several simulated nodes: storage is read once, and nodes send each other the rest.
//!
//! The ranks are threads of this process; those of different nodes share no memory, and their
//! leaders are connected by a simulated network.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use tload::ranks::Transport;
use tload::{
    ErrorKind, Group, Indices, LoadOptions, Loader, Order, Report, Selection, Share, Slice, Tensor,
    Verify,
};
use tload_testing::{Network, nodes_as_threads};

use crate::files::{assert_all, even, folder, location, options, write, write_manifest};
use crate::seccomp::refuse;
use crate::sharing::{Loaded, all_good, assert_alone, load_in, matrices, of_group, two_shards};

const MIB: u64 = 1 << 20;

fn across(loader: Loader, set: impl Fn(&mut LoadOptions)) -> Loader {
    loader.options(options(|it| {
        it.share = Share::Cluster;
        set(it);
    }))
}

/// Loads on every rank of `nodes` × 2 ranks; `set` makes the loader of each.
fn load_all(
    nodes: usize,
    path: &Path,
    set: impl Fn(usize, Loader) -> Loader + Sync,
) -> (Vec<Loaded>, Network) {
    let (group, network) = nodes_as_threads(nodes, 2);
    (load_in(group, path, set), network)
}

/// Asserts that storage was read once by all nodes together: at most `percent` more than `unique`
/// distinct bytes, for whole sectors.
fn assert_read_once(loaded: &[(Vec<Tensor>, Report)], unique: u64, percent: u64) {
    let reports = loaded.iter().map(|(_, report)| of_group(report));
    let read: u64 = reports.map(|group| group.read_bytes).sum();
    assert!(
        unique <= read && read * 100 <= unique * (100 + percent),
        "{read} bytes for {unique}"
    );
}

fn unique(loaded: &[(Vec<Tensor>, Report)]) -> u64 {
    of_group(&loaded[0].1).unique_bytes
}

#[test]
fn nodes_that_want_everything_read_it_once() {
    let folder = folder();
    let files = two_shards(folder.path(), 1);
    for nodes in [2, 3] {
        let (loaded, network) = load_all(nodes, folder.path(), |_, it| across(it, |_| ()));
        let loaded = all_good(loaded);
        assert_read_once(&loaded, unique(&loaded), 2);
        for (rank, (tensors, report)) in loaded.iter().enumerate() {
            assert_all(tensors, &[&files[0], &files[1]]);
            let group = of_group(report);
            assert_eq!((&*group.share, &group.reason), ("cluster", &None));
            let node = rank / 2 * 2;
            assert_eq!(
                (group.leader, &group.node_ranks[..]),
                (node, &[node, node + 1][..])
            );
            assert_eq!(group.reread_bytes, 0);
            if rank == node {
                let elsewhere = group.unique_bytes - group.unique_bytes / nodes as u64;
                let differs = group.node_received_bytes.abs_diff(elsewhere);
                assert!(differs <= 32 * MIB, "{group:?}");
                assert!(group.amplification.is_none_or(|it| it < 0.9), "{group:?}");
                assert!(network.sent(rank) > 0);
            } else {
                assert_eq!((group.node_received_bytes, network.sent(rank)), (0, 0));
            }
        }
    }
}

#[test]
fn node_of_one_rank_shares_with_others() {
    let folder = folder();
    let files = two_shards(folder.path(), 2);
    let (group, _) = nodes_as_threads(3, 1);
    let loaded = all_good(load_in(group, folder.path(), |_, it| across(it, |_| ())));
    for (tensors, report) in &loaded {
        assert_all(tensors, &[&files[0], &files[1]]);
        assert_eq!(of_group(report).share, "cluster");
    }
    assert_read_once(&loaded, unique(&loaded), 2);
}

#[test]
fn ranks_of_nodes_may_want_different_tensors() {
    let folder = folder();
    two_shards(folder.path(), 3);
    let selections = ["a*", "*", "b[0-4]", "b[3-8]", "a1*", "*1"];
    let select = |rank: usize, loader: Loader| {
        loader.select(Selection::glob(selections[rank]).expect("a glob"))
    };
    let (loaded, _) = load_all(3, folder.path(), |rank, it| {
        select(rank, across(it, |_| ()))
    });
    let loaded = all_good(loaded);
    for (rank, (tensors, _)) in loaded.iter().enumerate() {
        assert_alone(folder.path(), |loader| select(rank, loader), tensors);
    }
    // Rank 1 wants everything.
    assert_read_once(&loaded, unique(&loaded), 2);
}

#[test]
fn slices_of_nodes_are_read_once() {
    let folder = folder();
    write(
        &folder.path().join("m.safetensors"),
        &matrices(3, 4096, 1024),
    );
    // Each node has all rows, and a quarter of the columns.
    let slices = |rank: usize| {
        let rows = Indices::from(rank % 2 * 2048..(rank % 2 + 1) * 2048);
        let columns = Indices::from(rank * 256..(rank + 1) * 256);
        let all = Indices::from(0..4096);
        let slices = [Slice::new([rows]), Slice::new([all, columns])];
        let slice = move |index: usize| (format!("m{index}"), slices[index % 2].clone());
        (0..3).map(slice)
    };
    let (loaded, _) = load_all(2, folder.path(), |rank, it| {
        across(it, |_| ()).slices(slices(rank))
    });
    let loaded = all_good(loaded);
    for (rank, (tensors, _)) in loaded.iter().enumerate() {
        assert_alone(folder.path(), |loader| loader.slices(slices(rank)), tensors);
    }
    assert_read_once(&loaded, 3 * 4096 * 1024 * 2, 2);
}

#[test]
fn small_budgets_and_file_order_are_kept() {
    let folder = folder();
    let files = two_shards(folder.path(), 4);
    for order in [Order::File, Order::Ready] {
        let (loaded, _) = load_all(3, folder.path(), |_, it| {
            across(it, |it| {
                it.memory_limit = Some(48 << 20);
                it.order = order;
            })
        });
        let loaded = all_good(loaded);
        for (tensors, _) in &loaded {
            assert_all(tensors, &[&files[0], &files[1]]);
        }
        assert_read_once(&loaded, unique(&loaded), 2);
    }
}

#[test]
fn whole_files_are_verified_by_one_node() {
    let folder = folder();
    let files = two_shards(folder.path(), 5);
    write_manifest(folder.path());
    let verify = |_: usize, it| across(it, |it| it.verify = Verify::Require);
    let (loaded, _) = load_all(2, folder.path(), verify);
    let loaded = all_good(loaded);
    for (tensors, _) in &loaded {
        assert_all(tensors, &[&files[0], &files[1]]);
    }
    assert_read_once(&loaded, unique(&loaded), 2);
    let verified = |rank: usize| {
        let verification = loaded[rank].1.verification.as_ref();
        verification.expect("requested").bytes
    };
    let tensors = unique(&loaded);
    assert!(verified(0) < tensors && verified(2) < tensors);
    assert!(verified(0) + verified(2) >= tensors);
}

#[test]
fn wrong_digest_reaches_every_node() {
    let folder = folder();
    two_shards(folder.path(), 6);
    write_manifest(folder.path());
    let last = "model-00002-of-00002.safetensors";
    write(&folder.path().join(last), &even("b", 99, 9, 5 << 20));
    let verify = |_: usize, it| across(it, |it| it.verify = Verify::Require);
    let (loaded, _) = load_all(2, folder.path(), verify);
    assert_failed(loaded, ErrorKind::Corrupt, &[2]);
}

/// Asserts that every rank has failed with the same error.
fn assert_failed(loaded: Vec<Loaded>, kind: ErrorKind, ranks: &[usize]) {
    for (rank, loaded) in loaded.into_iter().enumerate() {
        let error = loaded.expect_err("fails");
        assert_eq!(
            (error.kind(), error.ranks()),
            (kind, ranks),
            "{rank}: {error}"
        );
    }
}

/// Loads while something happens to the network after some tensors.
fn load_while(
    path: &Path,
    set: impl Fn(Loader) -> Loader + Sync,
    happen: impl Fn(&Network) + Sync,
) -> Vec<Loaded> {
    let (group, network) = nodes_as_threads(2, 2);
    let (set, happen, network) = (&set, &happen, &network);
    let begun = &std::sync::Barrier::new(4);
    let load = |rank: usize, group: Arc<dyn Group>| -> Loaded {
        let loader = Loader::open(location(path)).expect("a good checkpoint");
        let stream = set(loader).group(group).stream();
        begun.wait();
        let mut stream = stream?;
        let first = stream.next().expect("several tensors")?;
        if begun.wait().is_leader() {
            happen(network);
        }
        begun.wait();
        let _ = rank;
        let mut tensors = vec![first];
        for tensor in stream.by_ref() {
            tensors.push(tensor?);
        }
        Ok((tensors, stream.report()))
    };
    let load = &load;
    std::thread::scope(|scope| {
        let group = group.into_iter().enumerate();
        let ranks: Vec<_> = group
            .map(|(rank, group)| scope.spawn(move || load(rank, group)))
            .collect();
        let loaded = ranks.into_iter();
        loaded.map(|rank| rank.join().expect("no panic")).collect()
    })
}

/// Rank on whose thread no other one can be started once it connects to other nodes.
#[derive(Debug)]
struct WithoutThreads(Arc<dyn Group>);

impl Group for WithoutThreads {
    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn size(&self) -> usize {
        self.0.size()
    }

    fn exchange(&self, message: &[u8], deadline: Instant) -> tload::Result<Vec<Vec<u8>>> {
        self.0.exchange(message, deadline)
    }

    fn transport(
        &self,
        leaders: &[usize],
        deadline: Instant,
    ) -> tload::Result<Option<Arc<dyn Transport>>> {
        // Which of them the C library uses depends on its age.
        for call in [libc::SYS_clone3, libc::SYS_clone] {
            refuse(call, libc::EAGAIN);
        }
        self.0.transport(leaders, deadline)
    }

    fn simulated_node(&self) -> Option<usize> {
        self.0.simulated_node()
    }
}

#[test]
fn leader_without_threads_is_an_error_of_every_node() {
    let folder = folder();
    two_shards(folder.path(), 13);
    let (mut group, _) = nodes_as_threads(2, 2);
    group[0] = Arc::new(WithoutThreads(Arc::clone(&group[0])));
    let loaded = load_in(group, folder.path(), |_, it| across(it, |_| ()));
    for (rank, loaded) in loaded.into_iter().enumerate() {
        let error = loaded.expect_err("fails");
        assert_eq!(error.ranks(), [0], "{rank}: {error}");
        // On a busy machine, the other node may see the end of the connection only.
        if rank < 2 {
            assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{rank}: {error}");
        }
    }
}

fn small(loader: Loader) -> Loader {
    across(loader, |it| it.memory_limit = Some(48 << 20))
}

#[test]
fn loss_of_a_node_is_an_error_of_the_others() {
    let folder = folder();
    two_shards(folder.path(), 7);
    let loaded = load_while(folder.path(), small, |network| network.cut(2));
    for (rank, loaded) in loaded.into_iter().enumerate() {
        let error = loaded.expect_err("cut off");
        let other = [2 - rank / 2 * 2];
        assert_eq!(
            (error.kind(), error.ranks()),
            (ErrorKind::Peer, &other[..]),
            "{error}"
        );
    }
}

#[test]
fn lost_node_is_made_up_for() {
    let folder = folder();
    let files = two_shards(folder.path(), 8);
    let read = |loader| {
        across(loader, |it| {
            it.memory_limit = Some(48 << 20);
            it.on_peer_loss = "read".parse().expect("a policy");
        })
    };
    let loaded = all_good(load_while(folder.path(), read, |network| network.cut(2)));
    for (rank, (tensors, report)) in loaded.iter().enumerate() {
        assert_all(tensors, &[&files[0], &files[1]]);
        let leads = rank % 2 == 0;
        assert_eq!(of_group(report).reread_bytes > 0, leads, "{report}");
    }
}

#[test]
fn stalled_node_is_lost() {
    let folder = folder();
    two_shards(folder.path(), 9);
    let loaded = load_while(folder.path(), small, |network| network.stall(2));
    for loaded in loaded {
        let error = loaded.expect_err("stalled");
        assert_eq!(error.kind(), ErrorKind::Peer, "{error}");
    }
}

#[test]
fn bytes_that_change_on_the_way_are_an_error() {
    let folder = folder();
    two_shards(folder.path(), 10);
    let loaded = load_while(folder.path(), small, Network::damage);
    let mut corrupt = 0;
    for loaded in loaded {
        let error = loaded.expect_err("damaged");
        // The node that finds it first leaves, which the other one may see before its own damage.
        if error.kind() == ErrorKind::Peer {
            continue;
        }
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(
            error.message().contains("do not match their checksum"),
            "{error}"
        );
        corrupt += 1;
    }
    assert!(corrupt > 0);
}

#[test]
fn node_whose_ranks_all_leave_serves_the_others() {
    let folder = folder();
    let files = two_shards(folder.path(), 11);
    let (group, _) = nodes_as_threads(2, 2);
    let files = &files;
    std::thread::scope(|scope| {
        for (rank, group) in group.into_iter().enumerate() {
            let path = folder.path();
            scope.spawn(move || {
                let loader = Loader::open(location(path)).expect("a good checkpoint");
                let mut stream = small(loader).group(group).stream().expect("starts");
                if rank < 2 {
                    drop(stream.next().expect("several tensors").expect("loads"));
                    drop(stream);
                    return;
                }
                let tensors: Vec<_> = stream.by_ref().map(|it| it.expect("loads")).collect();
                assert_all(&tensors, &[&files[0], &files[1]]);
                let report = stream.report();
                assert_eq!(of_group(&report).reread_bytes, 0, "{report}");
            });
        }
    });
}

#[test]
fn group_without_transport_shares_within_nodes() {
    let folder = folder();
    let files = two_shards(folder.path(), 12);
    let group = tload_testing::ranks_as_threads(2);
    let loaded = all_good(load_in(group, folder.path(), |_, it| across(it, |_| ())));
    for (tensors, report) in &loaded {
        assert_all(tensors, &[&files[0], &files[1]]);
        let group = of_group(report);
        assert_eq!((&*group.share, &group.reason), ("node", &None), "one node");
    }
}
