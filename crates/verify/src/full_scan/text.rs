//! Report of a verification as text: a table of the files, the differences, and notes, in which
//! files with the same reason are one line.

use std::fmt::{self, Write};

use super::report::{FileReport, Mismatch, VerifyReport};
use crate::error::{field_name, printable};
use crate::options::{format_bytes, format_rate};

const HEADER: [&str; 4] = ["file", "size", "verified by", "result"];

/// Column that is aligned to the right.
const SIZE: usize = 1;

impl VerifyReport {
    /// Returns the report as text, with options in its errors named by `name`, as in
    /// [`Error::chain_with`](crate::error::Error::chain_with): a table of the files, a line for
    /// each difference and for each file that could not be compared, and a summary.
    pub fn text_with(&self, name: impl Fn(&str, Option<&str>) -> String) -> String {
        let mut text = table(&self.files);
        // Writing to a `String` cannot fail.
        let _ = self.write_findings(&mut text, &name);
        let _ = self.write_summary(&mut text);
        text
    }

    /// Returns notes for the user: why files could not be compared, each reason once, and
    /// [`Self::notes`].
    pub fn remarks(&self) -> Vec<String> {
        let mut reasons: Vec<(String, Vec<&str>)> = Vec::new();
        for file in &self.files {
            if !file.verified_by.is_empty() || file.bytes.is_none() || file.silent.is_empty() {
                continue;
            }
            let reason = file.silent.join("; ");
            match reasons.iter_mut().find(|(known, _)| *known == reason) {
                Some((_, names)) => names.push(&file.name),
                None => reasons.push((reason, vec![&file.name])),
            }
        }
        let reasons = reasons.into_iter().map(|(reason, names)| {
            let more = match names.len() - 1 {
                0 => String::new(),
                1 => " and 1 more file".to_owned(),
                count => format!(" and {count} more files"),
            };
            format!("{}{more}: {reason}", printable(names[0]))
        });
        reasons.chain(self.notes.iter().cloned()).collect()
    }

    fn write_findings(
        &self,
        f: &mut impl Write,
        name: &impl Fn(&str, Option<&str>) -> String,
    ) -> fmt::Result {
        for file in &self.files {
            let shown = printable(&file.name);
            for mismatch in &file.mismatches {
                writeln!(f, "{shown}: {}", described(mismatch))?;
            }
            if let Some(error) = &file.error {
                writeln!(f, "{shown}: {}", error.error().chain_with(name))?;
            }
        }
        Ok(())
    }

    fn write_summary(&self, f: &mut impl Write) -> fmt::Result {
        let plural = if self.files.len() == 1 { "" } else { "s" };
        write!(f, "{}: {} file{plural}, ", self.location, self.files.len())?;
        if self.bytes == 0 && self.files.iter().all(|file| file.verified_by.is_empty()) {
            writeln!(f, "nothing compared")?;
        } else {
            let rate = float(self.bytes) / self.seconds.max(1e-9);
            let (bytes, rate) = (format_bytes(self.bytes), format_rate(rate));
            writeln!(f, "{bytes} in {:.3} s ({rate})", self.seconds)?;
        }
        match &self.written {
            Some(path) => writeln!(f, "wrote {path}"),
            None => Ok(()),
        }
    }
}

/// The text, and the notes.
impl fmt::Display for VerifyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text_with(field_name))?;
        for remark in self.remarks() {
            writeln!(f, "note: {remark}")?;
        }
        Ok(())
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "two digits of a rate need no more than 53 bits"
)]
fn float(bytes: u64) -> f64 {
    bytes as f64
}

fn table(files: &[FileReport]) -> String {
    let rows: Vec<_> = std::iter::once(HEADER.map(str::to_owned))
        .chain(files.iter().map(row))
        .collect();
    let width = |column: usize| {
        let widths = rows.iter().map(|row| row[column].chars().count());
        widths.max().unwrap_or(0)
    };
    let widths = [width(0), width(1), width(2), width(3)];
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (column, (field, width)) in row.iter().zip(widths).enumerate() {
            // Writing to a `String` cannot fail.
            let _ = if column == SIZE {
                write!(line, "{field:>width$}  ")
            } else {
                write!(line, "{field:<width$}  ")
            };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn row(file: &FileReport) -> [String; 4] {
    let by: Vec<_> = file.verified_by.iter().map(|by| printable(by)).collect();
    [
        printable(&file.name),
        file.bytes.map_or_else(|| "-".to_owned(), format_bytes),
        if by.is_empty() {
            "-".to_owned()
        } else {
            by.join(", ")
        },
        file.outcome.to_string(),
    ]
}

fn described(mismatch: &Mismatch) -> String {
    let tensor = mismatch.tensor.as_deref().map(printable);
    let tensor = tensor.map_or_else(String::new, |tensor| format!("tensor {tensor}, "));
    format!(
        "{tensor}bytes {}..{}: expected {} ({}), found {}",
        mismatch.range.start,
        mismatch.range.end,
        mismatch.expected,
        printable(&mismatch.by),
        mismatch.found
    )
}

#[cfg(test)]
mod tests {
    use super::super::FileOutcome;
    use super::*;

    fn unverified(name: &str, silent: &[&str]) -> FileReport {
        FileReport {
            name: name.to_owned(),
            bytes: Some(2048),
            outcome: FileOutcome::Unverified,
            verified_by: Vec::new(),
            silent: silent.iter().map(|&text| text.to_owned()).collect(),
            mismatches: Vec::new(),
            error: None,
            is_shard: true,
        }
    }

    #[test]
    fn equal_reasons_are_one_note_with_count() {
        let mut report = VerifyReport {
            location: "m".to_owned(),
            notes: vec!["extra".to_owned()],
            ..VerifyReport::default()
        };
        for index in 0..64 {
            let file = unverified(
                &format!("{index:02}.safetensors"),
                &["no manifest", "no hub"],
            );
            report.files.push(file);
        }
        report.files.push(unverified("a\u{1b}.json", &["no hub"]));
        assert_eq!(
            report.remarks(),
            [
                "00.safetensors and 63 more files: no manifest; no hub",
                "a\\u{1b}.json: no hub",
                "extra"
            ]
        );
        let text = report.to_string();
        assert!(text.starts_with("file               size  verified by  result\n00.safetensors  2.0 KiB  -            unverified\n"), "{text}");
        assert!(text.ends_with("m: 65 files, nothing compared\nnote: 00.safetensors and 63 more files: no manifest; no hub\nnote: a\\u{1b}.json: no hub\nnote: extra\n"), "{text}");
    }

    #[test]
    fn difference_is_one_line() {
        let mut file = unverified("x.safetensors", &[]);
        file.outcome = FileOutcome::Differs;
        file.verified_by = vec!["manifest m".to_owned()];
        file.mismatches = vec![Mismatch {
            tensor: Some("a".to_owned()),
            range: 8..16,
            by: "manifest m".to_owned(),
            expected: "crc32c:1".to_owned(),
            found: "crc32c:2".to_owned(),
        }];
        let report = VerifyReport {
            location: "m".to_owned(),
            files: vec![file],
            bytes: 2048,
            seconds: 2.0,
            ..VerifyReport::default()
        };
        assert_eq!(
            report.to_string(),
            "file              size  verified by  result\nx.safetensors  2.0 KiB  manifest m   differs\nx.safetensors: tensor a, bytes 8..16: expected crc32c:1 (manifest m), found crc32c:2\nm: 1 file, 2.0 KiB in 2.000 s (0.0 MB/s)\n"
        );
    }
}
