//! Failures of a rank and what the ranks say: run by real processes, and printed to
//! `docs/reference/scale-out.md`. `TLOAD_BLESS=1` rewrites the table there.

use std::fmt::Write as _;
use std::path::Path;

use rustix::process::Signal;
use tload_testbed::assert_recorded_between;

use super::{LITTLE, Setting, answers, assert_answers, assert_complete, tell};
use crate::child::Child;
use crate::files::{read, write, write_manifest};

const PAGE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../docs/reference/scale-out.md"
);
const BEGIN: &str = "<!-- failures:begin -->\n";
const END: &str = "<!-- failures:end -->\n";

/// Failure, and its outcome.
struct Row {
    event: &'static str,
    outcome: &'static str,
    /// Makes it happen, and returns the answer of a rank that it concerns.
    run: fn(&Setting) -> String,
}

const ROWS: &[Row] = &[
    Row {
        event: "a rank never joins",
        outcome: "every other rank fails after `join_timeout`",
        run: never_joins,
    },
    Row {
        event: "a rank ends before it joins",
        outcome: "every other rank fails at once",
        run: ends_before_it_joins,
    },
    Row {
        event: "a rank cannot begin, for example because its files are not there",
        outcome: "every other rank fails at once; the group can be used again",
        run: cannot_begin,
    },
    Row {
        event: "options that must agree differ",
        outcome: "every rank fails at once; the group can be used again",
        run: options_differ,
    },
    Row {
        event: "files differ",
        outcome: "every rank fails at once; the group can be used again",
        run: files_differ,
    },
    Row {
        event: "the leader has too little memory",
        outcome: "every rank fails",
        run: too_little_memory,
    },
    Row {
        event: "the leader cannot read, or a digest is wrong",
        outcome: "every rank fails that needs the bytes",
        run: wrong_digest,
    },
    Row {
        event: "a rank fails, is cancelled or killed",
        outcome: "the others go on",
        run: follower_is_killed,
    },
    Row {
        event: "the leader is killed",
        outcome: "every other rank fails within a second",
        run: |setting| leader_is_killed(setting, "error"),
    },
    Row {
        event: "the same, `on_peer_loss=\"read\"`",
        outcome: "each rank reads what is missing",
        run: |setting| leader_is_killed(setting, "read"),
    },
    Row {
        event: "the same, with `verify`",
        outcome: "every other rank fails: nothing would verify what it read",
        run: |setting| leader_is_killed(setting, "read verify=require"),
    },
    Row {
        event: "the leader is stopped",
        outcome: "as if it were killed, after ten seconds",
        run: leader_is_stopped,
    },
    Row {
        event: "a rank is stopped or slow",
        outcome: "the others go on; it reads itself what was not kept for it (`reread_bytes`)",
        run: |setting| stopped(setting, ""),
    },
    Row {
        event: "the same, with `verify`",
        outcome: "the others go on after `join_timeout`; it fails",
        run: |setting| stopped(setting, "verify=require join_timeout=10s"),
    },
    Row {
        event: "memory cannot be shared",
        outcome: "the rank reads for itself; `report.group.reason` says why",
        run: memory_is_refused,
    },
];

/// Asserts that the answers are equal, and returns one.
fn equal(answers: &[String]) -> String {
    assert!(answers.iter().all(|it| *it == answers[0]), "{answers:#?}");
    answers[0].clone()
}

/// Asserts that the group is whole.
fn assert_usable(ranks: &mut [Child]) {
    tell(ranks, "load");
    assert_complete(ranks);
}

fn never_joins(setting: &Setting) -> String {
    // On a busy machine, the others may be late, too.
    for timeout in ["300ms", "5s", "100s"] {
        let mut ranks = setting.group(4);
        ranks.swap(2, 3);
        tell(&mut ranks[..3], &format!("load join_timeout={timeout}"));
        let found = answers(&ranks[..3]);
        if found.iter().all(|it| it.starts_with("peer [2] ")) {
            return equal(&found);
        }
        assert!(found.iter().all(|it| it.starts_with("peer [")), "{found:?}");
    }
    unreachable!("100 s are enough for three ranks")
}

fn ends_before_it_joins(setting: &Setting) -> String {
    let mut ranks = setting.group(4);
    ranks[3].signal(Signal::KILL);
    tell(&mut ranks[..3], "load");
    equal(&answers(&ranks[..3]))
}

fn cannot_begin(setting: &Setting) -> String {
    let model = setting.model();
    let nowhere = setting.folder.path().join("nowhere");
    let paths: [&Path; 4] = [&model, &nowhere, &model, &model];
    let mut ranks = setting.group_with(&paths);
    tell(&mut ranks, "load join_timeout=100s");
    let found = answers(&ranks);
    assert!(found[1].starts_with("not_found [] "), "{found:?}");
    std::fs::create_dir(&nowhere).expect("a temporary folder");
    for file in ["a.safetensors", "b.safetensors"] {
        std::fs::hard_link(model.join(file), nowhere.join(file)).expect("one file system");
    }
    assert_usable(&mut ranks);
    equal(&[&found[..1], &found[2..]].concat())
}

fn options_differ(setting: &Setting) -> String {
    let mut ranks = setting.group(4);
    tell(&mut ranks[..3], "load memory_limit=1GiB");
    ranks[3].tell("load memory_limit=2GiB");
    let answer = equal(&answers(&ranks));
    assert_usable(&mut ranks);
    answer
}

fn files_differ(setting: &Setting) -> String {
    let model = setting.model();
    let fewer = setting.folder.path().join("fewer");
    std::fs::create_dir(&fewer).expect("a temporary folder");
    std::fs::hard_link(model.join("a.safetensors"), fewer.join("a.safetensors"))
        .expect("one file system");
    let mut ranks = setting.group_with(&[&model, &fewer, &model]);
    tell(&mut ranks, "load");
    equal(&answers(&ranks))
}

fn too_little_memory(setting: &Setting) -> String {
    let mut ranks = setting.group(4);
    tell(&mut ranks, "load memory_limit=1MiB");
    let found = answers(&ranks);
    assert!(found[0].starts_with("out_of_memory [0] "), "{found:?}");
    // How much is needed depends on the disk.
    let told = equal(&found[1..]);
    let (_, told) = told.split_once(" are needed ").expect("names the need");
    let (told, _) = told.rsplit_once(" is ").expect("and the limit");
    format!("out_of_memory [0] rank 0: … are needed {told} is …")
}

fn wrong_digest(setting: &Setting) -> String {
    let model = setting.model();
    write_manifest(&model);
    // One tensor, so that no other one fails first.
    let path = model.join("a.safetensors");
    let mut file = read(&path);
    *file.last_mut().expect("tensors") ^= 1;
    write(&path, &file);
    let mut ranks = setting.group(4);
    tell(&mut ranks, "load verify=require");
    let found = answers(&ranks);
    assert!(
        found
            .iter()
            .all(|it| it.starts_with("corrupt [0] rank 0: "))
    );
    found[1].clone()
}

fn follower_is_killed(setting: &Setting) -> String {
    let mut ranks = setting.group(4);
    tell(&mut ranks[..3], &format!("load {LITTLE}"));
    ranks[3].tell(&format!("load {LITTLE} hold=2"));
    assert_eq!(ranks[3].answer(), "holds");
    ranks[3].signal(Signal::KILL);
    // On a busy machine, a rank may fall behind and read again.
    let complete = |answer: String| {
        let (kind, rest) = answer.split_once(' ').expect("two words");
        assert_eq!(kind, "complete", "{answer}");
        let (_bytes, group) = rest.split_once(' ').expect("three words");
        format!("complete 0 {group}")
    };
    let found: Vec<_> = answers(&ranks[..3]).into_iter().map(complete).collect();
    equal(&found)
}

fn leader_is_killed(setting: &Setting, policy: &str) -> String {
    write_manifest(&setting.model());
    let mut ranks = setting.group(4);
    tell(
        &mut ranks,
        &format!("load {LITTLE} hold=2 on_peer_loss={policy}"),
    );
    assert_answers(&ranks, "holds");
    ranks[0].signal(Signal::KILL);
    assert_eq!(ranks[0].answer(), "gone");
    tell(&mut ranks[1..], "go");
    let found = answers(&ranks[1..]);
    if policy != "read" {
        return equal(&found);
    }
    assert!(
        found.iter().all(|it| it.starts_with("complete ")),
        "{found:?}"
    );
    found[0].clone()
}

fn leader_is_stopped(setting: &Setting) -> String {
    let mut ranks = setting.group(4);
    tell(&mut ranks, &format!("load {LITTLE} hold=2"));
    assert_answers(&ranks, "holds");
    ranks[0].signal(Signal::STOP);
    tell(&mut ranks[1..], "go");
    equal(&answers(&ranks[1..]))
}

fn stopped(setting: &Setting, verify: &str) -> String {
    write_manifest(&setting.model());
    let mut ranks = setting.group(4);
    tell(&mut ranks[..3], &format!("load {LITTLE} {verify}"));
    ranks[3].tell(&format!("load {LITTLE} {verify} hold=2"));
    assert_eq!(ranks[3].answer(), "holds");
    ranks[3].signal(Signal::STOP);
    assert_complete(&ranks[..3]);
    ranks[3].signal(Signal::CONT);
    ranks[3].tell("go");
    ranks[3].answer()
}

fn memory_is_refused(setting: &Setting) -> String {
    let mut ranks = setting.group(4);
    assert_eq!(ranks[3].ask("refuse-memfd"), "refused");
    tell(&mut ranks, "load");
    assert_complete(&ranks[..3]);
    ranks[3].answer()
}

/// Returns the cells for an answer: what the rank raises, and what it says.
fn cells(answer: &str, setting: &Setting) -> String {
    let folder = format!("{}/", setting.folder.path().display());
    let answer = answer.replace(&folder, "");
    let (kind, rest) = answer.split_once(' ').expect("two words");
    if kind == "complete" {
        let reason = rest.splitn(3, ' ').nth(2).unwrap_or_default();
        return format!("| loads | {} |", quoted(reason));
    }
    let class: String = kind.split('_').map(capitalized).collect();
    let (ranks, message) = rest.split_once("] ").expect("ranks and a message");
    let ranks = match ranks.trim_start_matches('[') {
        "" => String::new(),
        ranks => format!(", `ranks` ({ranks})"),
    };
    format!("| `{class}Error`{ranks} | {} |", quoted(message))
}

fn capitalized(word: &str) -> String {
    let (first, rest) = word.split_at(1);
    first.to_uppercase() + rest
}

fn quoted(text: &str) -> String {
    match text {
        "" => String::new(),
        text => format!("“{}”", text.replace('|', "\\|")),
    }
}

#[test]
fn page_matches_rows() {
    let mut table = "\n| event | outcome | raised | message |\n|:--|:--|:--|:--|\n".to_owned();
    for Row {
        event,
        outcome,
        run,
    } in ROWS
    {
        let setting = Setting::new();
        let cells = cells(&run(&setting), &setting);
        writeln!(table, "| {event} | {outcome} {cells}").expect("writing to a string succeeds");
    }
    table.push('\n');
    assert_recorded_between(Path::new(PAGE), BEGIN, END, &table);
}
