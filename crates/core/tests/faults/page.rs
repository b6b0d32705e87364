//! The table of faults as a page of the docs: generated from the rows, and checked to be current.

use std::fmt::Write as _;
use std::path::Path;

use tload::ErrorKind;
use tload_testbed::assert_recorded;

use crate::row::{Names, Outcome, Place, Retried, Row};
use crate::table::all;

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/faults.md");

const INTRODUCTION: &str = "\
# When storage fails

Faults of storage and the outcome of a load that meets them. This page is generated from tests that
make each fault and check the outcome, the bytes of every tensor that was delivered, and leaks of
threads, descriptors and memory (`crates/core/tests/faults`; to generate it again:
`TLOAD_BLESS=1 cargo test --features tload/aws-config,tload/testing --test faults page`).

Three statements hold for every row. **Delivered bytes are right**, also before an error, unless the
table says otherwise. **Nothing hangs**: `timeout`, and a store's `read_timeout`, end requests that
storage never answers. **Nothing leaks** once storage has released the requests it holds.

The rows about files, objects and contents hold for [sealed checkpoints](sealed.md) too, and are run
with them, except for views, indexes and manifests, which those have in another form. There a wrong
byte, or one of another state of the file, is always an error: `corrupt`, “is damaged, or of another
file”.

An outcome is *loads*, or the [kind of error](api/errors.md) with fragments of its text; *names* says
what the error names: the file or object, a byte range, the tensor. *Retried* tells whether a request
was retried: the [report](api/report.md) counts retries as `retries`, an error as `attempts`.
";

fn heading(place: Place) -> &'static str {
    match place {
        Place::Files => {
            "\n## Files\n\nOn a file system in user space that fails on command (`slowfs`). The program explains the rules\n\
             in the column *made by* when it is called without arguments.\n"
        }
        Place::Objects => {
            "\n## Objects\n\nIn a store that speaks S3 and fails on command, with two retries. Unless a row is about opening,\n\
             faults affect reads of tensors, not of the header.\n"
        }
        Place::Hubs => {
            "\n## Models of a hub\n\nIn the content store (xet) of a hub that fails on command, with two retries. *Later* faults begin\n\
             after the first token, query or xorb; before that, the load goes on by the hub's bridge.\n"
        }
        Place::Devices => {
            "\n## GPUs\n\nOn a simulated driver whose functions fail on command: `function:status:first call:count`.\n"
        }
        Place::Contents => {
            "\n## File contents\n\nA few of each kind. Files are validated before memory that they claim to need is allocated.\n"
        }
    }
}

/// Faults without a row: the fault, its outcome, and the test that covers it.
const ELSEWHERE: [(&str, &str, &str); 29] = [
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
        "crates/core/tests/objects/hosts.rs::azure_credentials_skip_hosts_named_only_by_url",
    ),
    (
        "a redirect leads to another origin",
        "loads; the range is sent there, without credentials and caller headers",
        "crates/core/tests/objects/redirects.rs::cross_origin_redirect_forwards_only_range",
    ),
    (
        "the metadata service fails while its token is valid",
        "loads, with that token",
        "crates/core/tests/objects/tokens.rs::token_outlasts_failures_of_metadata_service",
    ),
    (
        "a service of credentials is busy at first",
        "loads; it is asked again",
        "crates/core/tests/objects/credentials.rs::credential_service_that_recovers_is_asked_again",
    ),
    (
        "a server echoes a secret",
        "the error masks it",
        "crates/core/tests/objects/echoes.rs::errors_show_no_secret_echoed_by_server",
    ),
    (
        "a copied source is replaced by one of equal length and time",
        "it is copied again",
        "crates/cli/tests/it/cp.rs::another_version_of_the_same_length_and_time_is_copied",
    ),
    (
        "the branch of a Hub repository moves during a copy",
        "the copy is of one commit",
        "crates/core/tests/objects/hubs.rs::branch_moving_during_copy_does_not_mix_commits",
    ),
    (
        "an object without a validator is replaced during a copy",
        "`changed`; the file is removed",
        "crates/core/tests/objects/unversioned.rs::unversioned_object_replaced_during_copy_leaves_no_file",
    ),
    (
        "a shard is removed from an index, with `verify=sha256:MANIFEST`",
        "`corrupt`: names the index, or the file that is missing",
        "crates/core/tests/objects/tampered.rs::tampered_index_or_file_set_is_rejected",
    ),
    (
        "a sparse file of 1 TiB on overlayfs, 16 bytes selected",
        "loads, in less than 4 MiB",
        "crates/core/tests/alloc_limits.rs::sparse_file_on_overlay_takes_memory_for_selection_only",
    ),
    (
        "a directory has half a million numbered names",
        "they are checked in one pass",
        "crates/format/src/shards.rs::missing_shard_is_linear",
    ),
    (
        "a list of a store never ends",
        "an error",
        "crates/core/tests/objects/requests.rs::endless_list_is_error",
    ),
    (
        "a hub names contents by a text with line ends",
        "it counts as no name; no header or file has it",
        "crates/cli/tests/it/serve/passed_on.rs::text_of_a_hub_adds_no_header",
    ),
    (
        "a peer relays an earlier version with the same ends",
        "it is not read; the report has both ETags",
        "crates/core/tests/objects/mirrors.rs::version_that_a_peer_had_before_is_not_read",
    ),
    (
        "a mirror sends wrong bytes, with `verify=`",
        "`corrupt`: names tensor, bytes and mirror, which the process does not ask again",
        "crates/core/tests/objects/wrong_senders.rs::lying_mirror_is_named_and_not_asked_again",
    ),
    (
        "one of several mirrors sends wrong bytes, with `verify=`",
        "`corrupt`: names all that sent bytes of the tensor; none of them is asked again",
        "crates/core/tests/objects/wrong_senders.rs::all_mirrors_that_may_have_lied_are_named",
    ),
    (
        "the cache has wrong bytes with right checksums, and a manifest has digests",
        "`corrupt`: names tensor and bytes; the cache forgets the object",
        "crates/core/tests/objects/wrong_senders.rs::wrong_bytes_in_the_cache_are_forgotten",
    ),
    (
        "a file that `tload serve` sends is written to, and its times are set back",
        "the response ends early",
        "crates/cli/tests/it/serve.rs::changed_file_ends_the_response",
    ),
    (
        "a web page's name leads to `tload serve` on the loopback",
        "421, unless it has the token",
        "crates/cli/tests/it/serve.rs::web_page_whose_name_leads_here_is_not_answered",
    ),
    (
        "the bucket of `tload serve` does not exist",
        "`not_found` at the start",
        "crates/cli/tests/it/serve/passed_on.rs::mistake_that_fails_every_request_is_an_error_at_start",
    ),
    (
        "`tload cache rm` names no object of the cache",
        "`not_found`",
        "crates/cli/tests/it/cache.rs::mistakes_are_clear_errors",
    ),
    (
        "an adapter changes while it is copied",
        "it is copied again; after three copies `changed`",
        "tests/test_lora.py::test_adapter_that_changes_while_it_is_copied_is_copied_again",
    ),
    (
        "the adapters in use leave no room for another one",
        "`io`: names the adapter and the limit",
        "tests/test_lora.py::test_adapters_that_nothing_uses_make_way_for_others",
    ),
    (
        "another process copies an adapter for ten minutes",
        "`timed_out`: names the adapter",
        "tests/test_lora.py::test_a_copy_of_an_adapter_waits_for_one_of_another_process",
    ),
    (
        "a ring fails while its engine is dropped",
        "the memory of its reads is kept and counted (`parked_bytes`)",
        "crates/engine/src/uring/mod.rs::engine_drop_with_failed_ring_leaks_memory_in_flight",
    ),
    (
        "the last check of a load panics",
        "an error of the load",
        "crates/core/src/load/stream/ending.rs::panic_in_final_check_becomes_load_error",
    ),
    (
        "a process forks while its threads load",
        "the child loads, and blocks on no lock",
        "tests/test_fork.py::test_forked_child_never_waits_for_parent_locks",
    ),
];

fn page(rows: &[Row]) -> String {
    let mut page = INTRODUCTION.to_owned();
    for place in [
        Place::Files,
        Place::Objects,
        Place::Hubs,
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
                Place::Files | Place::Objects | Place::Hubs => engines.join(", "),
            };
            let (outcome, names, retried) = cells(row.outcome);
            let (fault, made) = (row.fault, row.made.replace('|', "\\|"));
            writeln!(
                page,
                "| {fault} | {made} | {engines} | {outcome} | {names} | {retried} |"
            )
            .expect("writing to a string succeeds");
        }
    }
    page.push_str(
        "\n## Elsewhere\n\nFaults outside the reads of one load, each with a test of its own.\n",
    );
    page.push_str("\n| fault | outcome | test |\n|:--|:--|:--|\n");
    for (fault, outcome, test) in ELSEWHERE {
        writeln!(page, "| {fault} | {outcome} | `{test}` |").expect("writing to a string succeeds");
    }
    page
}

fn cells(outcome: Outcome) -> (String, &'static str, &'static str) {
    match outcome {
        Outcome::Loads(retried) => ("loads".to_owned(), "", again(retried)),
        Outcome::Wrong => (
            "loads **wrong bytes** unless they are verified".to_owned(),
            "",
            "no",
        ),
        Outcome::Mixed { kind, says } => (
            format!(
                "{} at the end; tensors before it may **mix two states**",
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
fn tests_named_on_page_exist() {
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
fn page_matches_rows() {
    assert_recorded(Path::new(PATH), &page(&all()));
}
