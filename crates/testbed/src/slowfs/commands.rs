//! Commands to a running mount: one line in, one line out.

use std::time::Duration;

use super::queue::Queue;

/// Prefix of every response, which distinguishes it from other output.
pub(super) const ANSWER: &str = "slowfs: ";

/// Prefix of the response to an invalid command.
pub(super) const NOT_UNDERSTOOD: &str = "no, ";

/// Executes `line`. Returns the response, without a line end.
pub(super) fn obey(line: &str, queue: &Queue) -> String {
    let answer = answer(line, queue).unwrap_or_else(|reason| format!("{NOT_UNDERSTOOD}{reason}"));
    format!("{ANSWER}{answer}")
}

fn answer(line: &str, queue: &Queue) -> Result<String, String> {
    let words: Vec<_> = line.split_whitespace().collect();
    match words[..] {
        ["fault", rule] => queue.add(rule.parse()?),
        ["clear"] => {
            queue.clear();
            queue.release();
        }
        ["release"] => queue.release(),
        ["held", count, millis] => {
            let number = |word: &str| word.parse().map_err(|_| format!("{word} is not a number"));
            let timeout = Duration::from_millis(number(millis)?);
            let held = queue.wait_for_held(number(count)?, timeout);
            return Ok(held.to_string());
        }
        ["served"] => return Ok(queue.served().to_string()),
        _ => return Err(format!("{line:?} is not a command")),
    }
    Ok("done".to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::options::Options;
    use super::*;

    #[test]
    fn every_command_is_answered() {
        let queue = Queue::start(&Options::default()).expect("threads");
        for (line, wanted) in [
            ("fault errno=EIO,times=1", "slowfs: done"),
            ("clear", "slowfs: done"),
            (" release ", "slowfs: done"),
            ("held 1 0", "slowfs: 0"),
            (
                "served",
                "slowfs: reads=0 bytes=0 in_flight_max=0 faults=0 held=0",
            ),
            ("stop", "slowfs: no, \"stop\" is not a command"),
            ("held many 0", "slowfs: no, many is not a number"),
            ("fault what", "slowfs: no, what: wanted errno="),
        ] {
            let found = obey(line, &queue);
            assert!(found.starts_with(wanted), "{line}: {found}");
        }
    }
}
