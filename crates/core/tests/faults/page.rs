//! The table as a page of the docs. It is written from the rows, and must be what it would be if it were written now.

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
