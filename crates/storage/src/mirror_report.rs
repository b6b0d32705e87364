//! Report of a mirror.

use std::fmt;

use serde::Serialize;

use crate::error::printable;
use crate::options::format_bytes;

/// Mirror of the checkpoint (store options `mirrors` and `peers`): statistics since the checkpoint
/// was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct MirrorReport {
    /// Its URL, without secrets.
    pub location: String,
    /// Bytes received from it.
    pub read_bytes: u64,
    /// Last failure: an error, other bytes than the origin's, or too little speed. If nothing was
    /// received, also the error about a file that it does not have.
    pub failure: Option<String>,
    /// True if it is not used any more: it has other bytes, or failed several times.
    pub is_dropped: bool,
}

impl fmt::Display for MirrorReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (read, location) = (format_bytes(self.read_bytes), printable(&self.location));
        write!(f, "mirror   {read} from {location}")?;
        if self.is_dropped {
            f.write_str(", dropped")?;
        }
        match &self.failure {
            Some(failure) => {
                let lines: Vec<_> = failure.lines().map(str::trim).collect();
                write!(f, "; {}", printable(&lines.join("; ")))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_is_one_line() {
        let report = MirrorReport {
            location: "http://peer".to_owned(),
            failure: Some("it refuses\n  request: GET\n  hint: \u{1b}[0m".to_owned()),
            ..MirrorReport::default()
        };
        assert_eq!(
            report.to_string(),
            "mirror   0 B from http://peer; it refuses; request: GET; hint: \\u{1b}[0m"
        );
    }
}
