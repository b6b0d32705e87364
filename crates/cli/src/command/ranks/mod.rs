//! Loads of several ranks (`--ranks`): the command starts a process for each, and they load
//! together as one group.
//!
//! `start` starts the processes and collects what they tell, `rank` is one of them, `messages` what
//! they say to each other. `sharding` and `failures` are pure, `results` shows what the ranks did.

mod failures;
mod messages;
mod rank;
mod results;
mod rounds;
mod sharding;
mod start;

use std::ffi::OsString;
use std::io::Write;

use tload::{LoadOptions, Result};

use self::messages::Job;
use self::results::NodeLoad;
pub(super) use self::rounds::RankLoads;
use crate::args::LoadArgs;
use crate::interrupt::Interrupt;
use crate::options;
use crate::output::error::{note, standard_output};

/// First argument of a process that loads as one rank.
pub(super) const RANK: &str = "__rank";

/// Runs this process as a rank if it was started as one, and returns its exit status.
pub(crate) fn rank(arguments: &[OsString]) -> Option<u8> {
    (arguments.len() == 2 && arguments[1] == RANK).then(rank::run)
}

/// Runs `tload load --ranks`.
pub(super) fn load(
    args: &LoadArgs,
    size: usize,
    arguments: &[OsString],
    interrupt: &Interrupt,
    out: &mut dyn Write,
) -> Result<()> {
    // Mistakes in the request are not those of a rank.
    let location = options::location(&args.location)?;
    options::store(&args.opening.store, Some(&location))?;
    options::selection(&args.select)?;
    options::device(&args.device)?;
    options::device_map(&args.device_map)?;
    let job = Job {
        location: args.location.clone(),
        opening: args.opening.clone(),
        select: args.select.clone(),
        device: args.device.clone(),
        device_map: args.device_map.clone(),
        options: texts(&args.tuning.0),
        shard: args.ranks.shard,
        keep: args.keep,
    };
    let load = NodeLoad::new(start::run(&job, size, arguments, interrupt)?);
    for text in load.notes() {
        note(text);
    }
    if args.json {
        return interrupt.answer().give(out, &load);
    }
    load.write(out).map_err(standard_output)
}

/// Returns the options that are set, as text.
fn texts(options: &LoadOptions) -> Vec<(String, String)> {
    let text = |key: &tload::internal::OptionKey| {
        let value = key.value(options)?;
        Some((key.name.to_owned(), value.to_string()))
    };
    LoadOptions::KEYS.iter().filter_map(text).collect()
}
