//! Columns of a matrix for each rank: regions that hold nothing else, and reads in place of the
//! leader that published them.

use super::{MIB, Setting, answers, assert_answers, assert_complete, reread, tell};
use rustix::process::Signal;

/// Room for two matrices and a slot on the leader.
const TIGHT: &str = "memory_limit=20MiB";

#[test]
fn lost_leader_is_made_up_for() {
    let setting = Setting::of_matrices();
    for private in [false, true] {
        let mut ranks = setting.group(4);
        let load = format!("load columns=yes {TIGHT} hold=2 on_peer_loss=read private={private}");
        tell(&mut ranks, &load);
        assert_answers(&ranks, "holds");
        ranks[0].signal(Signal::KILL);
        assert_eq!(ranks[0].answer(), "gone");
        tell(&mut ranks[1..], "go");
        for answer in answers(&ranks[1..]) {
            // All bytes between the columns are read too.
            assert!(reread(&answer) > 12 * MIB as u64, "{answer}");
        }
    }
}

#[test]
fn stopped_rank_reads_what_was_not_kept_for_it() {
    let setting = Setting::of_matrices();
    let mut ranks = setting.group(4);
    tell(&mut ranks[..3], &format!("load columns=yes {TIGHT}"));
    ranks[3].tell(&format!("load columns=yes {TIGHT} hold=2"));
    assert_eq!(ranks[3].answer(), "holds");
    ranks[3].signal(Signal::STOP);
    for answer in answers(&ranks[..3]) {
        assert_eq!(reread(&answer), 0, "{answer}");
    }
    ranks[3].signal(Signal::CONT);
    ranks[3].tell("go");
    let bytes = reread(&ranks[3].answer());
    assert!(bytes > 12 * MIB as u64, "{bytes}");
}

/// Each part of a matrix has a descriptor on the leader.
#[test]
fn few_descriptors_suffice() {
    let setting = Setting::of_matrices();
    let mut ranks = setting.group(4);
    assert_eq!(ranks[0].ask("descriptors 96"), "limited");
    tell(&mut ranks, "load columns=yes");
    assert_complete(&ranks);
}
