//! The table as a page of the docs. It is generated from the rows, and must equal the committed
//! page.

use std::fmt::Write as _;
use std::path::Path;

use tload::ErrorKind;

use crate::requirement::variable;
use crate::row::{Names, Outcome, Place, Retried, Row};
use crate::table::all;

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/faults.md");

const INTRODUCTION: &str = "\
# When storage fails

What can go wrong with a load, and what then happens. Written from tests, which make each of these faults and compare the outcome, the
bytes of every tensor that was handed out, and what is left of threads, descriptors and memory (`crates/core/tests/faults`; to write
this page anew: `TLOAD_BLESS=1 cargo test --features tload/aws-config,tload/testing --test faults page`).

Three things hold for every row. **Bytes that are handed out are right**, also before an error, unless the table says otherwise. **Nothing
hangs**: what storage never answers ends by `timeout`, and by `read_timeout` of a store. **Nothing is left behind**, once storage has
let go of what it was asked for.

An outcome is *loads*, or the [kind of error](api/errors.md) with what its text has in it and what it names: the file or object, the
bytes of it, the tensor. *Retried* tells whether something was asked for again, which the [report](api/report.md) counts as `retries` and an
error as `attempts`.
";

fn heading(place: Place) -> &'static str {
    match place {
        Place::Files => {
            "\n## Files\n\nOn a file system in user space that fails on command (`slowfs`). Its rules, in the column *made by*, are explained by\n\
             the program when it is called without arguments.\n"
        }
        Place::Objects => {
            "\n## Objects\n\nIn a store that speaks S3 and fails on command. Two retries. Unless a row is about opening, faults strike\n\
             reads of tensors, not of the header.\n"
        }
        Place::Devices => {
            "\n## GPUs\n\nOn a driver that is a stand-in: its functions fail on command, as `function:status:first call:how many`.\n"
        }
        Place::Contents => {
            "\n## What is in the file\n\nSome of each sort. Files are checked before anything is read for which they claim room.\n"
        }
    }
}

/// Faults that no row can cause: the fault, its outcome, and the test for it.
const ELSEWHERE: [(&str, &str, &str); 15] = [
    (
        "the files of ranks have equal headers",
        "each rank gets its own elements",
        "tests/test_dcp_ranks.py::test_even_shares_of_ranks_are_told_apart",
    ),
    (
        "the file of a rank is missing",
        "`invalid_format`: names tensor, rows and files",
        "tests/test_dcp_ranks.py::test_rows_of_a_missing_rank_are_named",
    ),
    (
        "a URL names a host that is not its cloud's",
        "no credentials of the environment are sent; the hint names `endpoint`",
        "crates/core/tests/objects/hosts.rs::azure_credentials_of_the_environment_go_to_no_host_that_only_the_url_names",
    ),
    (
        "a redirect leads to another origin",
        "loads; the range is sent there, and nothing of the caller",
        "crates/core/tests/objects/redirects.rs::another_origin_gets_the_range_and_nothing_of_who_asks",
    ),
    (
        "a server repeats a secret",
        "the error masks it",
        "crates/core/tests/objects/echoes.rs::errors_repeat_no_secret_that_a_server_repeats",
    ),
    (
        "a copied source is replaced, with equal length and time",
        "it is copied again",
        "crates/cli/tests/it/cp.rs::another_version_of_the_same_length_and_time_is_copied",
    ),
    (
        "the branch of a hub moves during a copy",
        "the copy is of one commit",
        "crates/core/tests/objects/hubs.rs::a_branch_that_moves_during_a_copy_does_not_mix_commits",
    ),
    (
        "an object without a validator is replaced during a copy",
        "`changed`; the file is not kept",
        "crates/core/tests/objects/unversioned.rs::a_copy_of_an_object_that_is_replaced_meanwhile_has_changed_and_leaves_no_file",
    ),
    (
        "a shard is taken out of an index, with `verify=sha256:MANIFEST`",
        "`corrupt`: names the index, or the file that is missing",
        "crates/core/tests/objects/tampered.rs::a_checkpoint_that_is_another_by_its_index_or_files_is_refused",
    ),
    (
        "a sparse file of 1 TiB on overlayfs, 16 bytes selected",
        "loads, in less than 4 MiB",
        "crates/core/tests/bombs.rs::sparse_file_on_overlay_takes_memory_for_selection_only",
    ),
    (
        "a folder has half a million numbered names",
        "they are checked in one pass",
        "crates/core/src/format/shards.rs::missing_shard_is_linear",
    ),
    (
        "a list of a store never ends",
        "an error",
        "crates/core/tests/objects/requests.rs::a_list_without_end_is_an_error",
    ),
    (
        "a ring fails while its engine is dropped",
        "memory of its reads is kept and counted (`parked_bytes`)",
        "crates/core/src/engine/uring/mod.rs::engine_drop_with_failed_ring_leaks_memory_in_flight",
    ),
    (
        "the last check of a load panics",
        "an error of the load",
        "crates/core/src/stream/ending.rs::panic_in_final_check_becomes_load_error",
    ),
    (
        "a process forks while its threads load",
        "the child loads, and waits for no lock",
        "tests/test_fork.py::test_forked_child_never_waits_for_parent_locks",
    ),
];

fn page(rows: &[Row]) -> String {
    let mut page = INTRODUCTION.to_owned();
    for place in [
        Place::Files,
        Place::Objects,
        Place::Devices,
        Place::Contents,
    ] {
        page.push_str(heading(place));
        page.push_str("\n| fault | made by | engines | outcome | names | retried |\n");
        page.push_str("|:--|:--|:--|:--|:--|:--|\n");
        for row in rows.iter().filter(|row| row.place == place) {
            let engines: Vec<_> = row.engines.iter().map(|via| via.name()).collect();
            let engines = match place {
                Place::Devices | Place::Contents => "every one".to_owned(),
                Place::Files | Place::Objects => engines.join(", "),
            };
            let (outcome, names, retried) = cells(row.outcome);
            let (fault, made) = (row.fault, row.made.replace('|', "\\|"));
            writeln!(
                page,
                "| {fault} | {made} | {engines} | {outcome} | {names} | {retried} |"
            )
            .expect("a string takes all that is written");
        }
    }
    page.push_str(
        "\n## Elsewhere\n\nFaults beside reads of one load. A test of its own makes each.\n",
    );
    page.push_str("\n| fault | outcome | shown by |\n|:--|:--|:--|\n");
    for (fault, outcome, test) in ELSEWHERE {
        writeln!(page, "| {fault} | {outcome} | `{test}` |")
            .expect("a string takes all that is written");
    }
    page
}

fn cells(outcome: Outcome) -> (String, &'static str, &'static str) {
    match outcome {
        Outcome::Loads(retried) => ("loads".to_owned(), "", again(retried)),
        Outcome::Wrong => (
            "loads, **wrong** unless it is verified".to_owned(),
            "",
            "no",
        ),
        Outcome::Mixed { kind, says } => (
            format!(
                "{} at the end; what came before may be of **two states**",
                fails(kind, says)
            ),
            "file",
            "no",
        ),
        Outcome::Fails {
            kind,
            says,
            names,
            retried,
        } => (fails(kind, says), named(names), again(retried)),
    }
}

fn fails(kind: ErrorKind, says: &[&str]) -> String {
    let says: Vec<_> = says.iter().map(|words| format!("“{words}”")).collect();
    if says.is_empty() {
        format!("`{}`", kind.name())
    } else {
        format!("`{}`: {}", kind.name(), says.join(", "))
    }
}

fn named(names: Names) -> &'static str {
    match names {
        Names::Nothing => "",
        Names::Location => "file",
        Names::Range => "file, bytes",
        Names::Tensor => "tensor",
        Names::TensorAndRange => "file, bytes, tensor",
    }
}

fn again(retried: Retried) -> &'static str {
    match retried {
        Retried::No => "no",
        Retried::Yes => "yes",
        Retried::ByKernel => "by the kernel",
    }
}

#[test]
fn tests_of_faults_elsewhere_exist() {
    for (_, _, test) in ELSEWHERE {
        let (file, name) = test.split_once("::").expect("a file and a function");
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../..")
            .join(file);
        let text = String::from_utf8(crate::files::read(&path)).expect("UTF-8");
        let is_there =
            text.contains(&format!("fn {name}(")) || text.contains(&format!("def {name}("));
        assert!(is_there, "{file} has no test {name}");
    }
}

#[test]
fn the_page_is_what_the_rows_say() {
    let wanted = page(&all());
    if variable("TLOAD_BLESS").is_some() {
        std::fs::write(PATH, &wanted).expect("the docs can be written");
    }
    let found = String::from_utf8(crate::files::read(Path::new(PATH))).expect("UTF-8");
    let differs = found.lines().zip(wanted.lines()).find(|(a, b)| a != b);
    assert!(
        found == wanted,
        "docs/faults.md is not what the rows say (TLOAD_BLESS=1 writes it): {differs:#?}"
    );
}
