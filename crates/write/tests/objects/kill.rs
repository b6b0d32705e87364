//! A writer to a store that is killed at every one of its steps leaves the old checkpoint or the
//! new one.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use tload_base::options::{Location, StoreOptions};
use tload_write::{WriteOptions, kill_at};

use crate::expected::{tensors, write_to};
use crate::sites::{Site, on_each};

/// Variable that makes this test program a writer: a location, a step, and options of the store.
const VARIABLE: &str = "TLOAD_TEST_WRITER";

/// Not a test: the program that is killed.
#[test]
fn writer() {
    let Ok(order) = std::env::var(VARIABLE) else {
        return;
    };
    let mut lines = order.lines();
    let location = Location::parse(lines.next().expect("a location")).expect("a URL");
    kill_at(lines.next().expect("a step").parse().expect("a number"));
    let pairs = lines.map(|line| line.split_once('=').expect("an option"));
    let options = StoreOptions::from_pairs(pairs).expect("valid");
    let options = WriteOptions::new().store(options).replace(true);
    let written = write_to(
        &location,
        &tensors(7, 9000, 9),
        options.max_shard_bytes(6000),
    );
    written.expect("is written");
}

/// Starts a writer, and returns whether it was killed.
fn is_killed(site: &Site, prefix: &str, step: u64) -> bool {
    let pairs = site
        .pairs
        .iter()
        .map(|(key, value)| format!("{key}={value}"));
    let options: Vec<_> = pairs.collect();
    let order = format!("{}/{prefix}\n{step}\n{}", site.base, options.join("\n"));
    let output = Command::new(std::env::current_exe().expect("is known"))
        .args(["--exact", "kill::writer", "--nocapture"])
        .env(VARIABLE, order)
        .output()
        .expect("is started");
    let killed = output.status.signal() == Some(9);
    assert!(killed || output.status.success(), "{output:?}");
    killed
}

#[test]
fn killed_writer_leaves_old_checkpoint_or_new_one() {
    on_each(|site| {
        let (old, new) = (tensors(3, 900, 1), tensors(7, 9000, 9));
        let mut kills = 0;
        for is_replaced in [false, true] {
            let mut outcomes = [0, 0];
            for step in 1.. {
                let prefix = format!("killed/{is_replaced}/{step}");
                let location = site.location(&prefix);
                if is_replaced {
                    write_to(&location, &old, site.writing()).expect("is written");
                }
                let killed = is_killed(site, &prefix, step);
                let found = site.read(&prefix);
                let is_new = found.as_ref() == Some(&new);
                let is_old = found == is_replaced.then(|| old.clone());
                assert!(is_new || is_old, "{} at step {step}", site.name);
                outcomes[usize::from(is_new)] += 1;
                // The next writer is not in the way of what this one has left.
                write_to(&location, &new, site.writing()).expect("is written");
                assert_eq!(site.read(&prefix).expect("is there"), new);
                if !killed {
                    assert!(is_new);
                    break;
                }
                kills += 1;
            }
            assert!(outcomes.iter().all(|&count| count > 0), "{outcomes:?}");
        }
        println!("{}: {kills} kills", site.name);
        assert!(kills > 20, "{kills}");
    });
}
