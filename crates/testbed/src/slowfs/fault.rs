//! Faults on command, the requests that they strike, and how often. Pure: `queue` asks once for
//! each request and applies the fault.
//!
//! A [`Rule`] is also one word of text, for command lines and for commands to a running mount:
//!
//! ```text
//! errno=EIO,on=read,file=m-0,from=1048576,after=2,every=3,times=1
//! ```

use std::fmt::{self, Display};
use std::str::FromStr;
use std::time::Duration;

use rustix::io::Errno;

/// Errors that have names here; others are given by number.
const ERRNOS: [(&str, Errno); 14] = [
    ("EACCES", Errno::ACCESS),
    ("EAGAIN", Errno::AGAIN),
    ("EINTR", Errno::INTR),
    ("EINVAL", Errno::INVAL),
    ("EIO", Errno::IO),
    ("EMFILE", Errno::MFILE),
    ("ENODEV", Errno::NODEV),
    ("ENOENT", Errno::NOENT),
    ("ENOMEM", Errno::NOMEM),
    ("ENOTCONN", Errno::NOTCONN),
    ("EOPNOTSUPP", Errno::OPNOTSUPP),
    ("EREMOTEIO", Errno::REMOTEIO),
    ("ESTALE", Errno::STALE),
    ("ETIMEDOUT", Errno::TIMEDOUT),
];

/// Fault of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Fails with this error number of the system.
    Errno(i32),
    /// Returns so many bytes at most, 0 for none. Reads only.
    Short(usize),
    /// Is held until released, or for ever.
    Hold,
    /// Is delayed by this time. Reads only.
    Late(Duration),
    /// Flips all bits of the byte at this offset of the file. Only in reads that include that byte.
    Flip(u64),
}

/// Kind of a request to the file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Request {
    /// Reading bytes.
    #[default]
    Read,
    /// Opening a file for reading.
    Open,
    /// Looking up a name, or the length and age of a file.
    Stat,
}

/// Fault, and the requests that it strikes: all reads, unless narrowed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a rule does nothing until a file system has it"]
pub struct Rule {
    fault: Fault,
    request: Request,
    file: Option<String>,
    from: u64,
    after: u64,
    every: u64,
    times: Option<u64>,
}

impl Rule {
    /// Strikes every read.
    pub fn always(fault: Fault) -> Self {
        Self {
            fault,
            request: Request::Read,
            file: None,
            from: 0,
            after: 0,
            every: 1,
            times: None,
        }
    }

    /// Strikes one read.
    pub fn once(fault: Fault) -> Self {
        Self::always(fault).times(1)
    }

    /// Strikes at most so many requests.
    pub fn times(self, times: u64) -> Self {
        Self {
            times: Some(times),
            ..self
        }
    }

    /// Strikes requests of this kind, not reads.
    pub fn on(self, request: Request) -> Self {
        Self { request, ..self }
    }

    /// Narrows to files whose path below the folder contains this text. It cannot hold commas and
    /// equals signs.
    pub fn file(self, contains: &str) -> Self {
        Self {
            file: Some(contains.to_owned()),
            ..self
        }
    }

    /// Narrows to reads that begin at this byte or later.
    pub fn from_byte(self, from: u64) -> Self {
        Self { from, ..self }
    }

    /// Lets so many of its requests pass first.
    pub fn after(self, requests: u64) -> Self {
        Self {
            after: requests,
            ..self
        }
    }

    /// Strikes the first of so many of its requests, then the first of the next so many; at least
    /// 1.
    pub fn every(self, requests: u64) -> Self {
        Self {
            every: requests.max(1),
            ..self
        }
    }

    fn matches(&self, asked: &Asked<'_>) -> bool {
        let file = self
            .file
            .as_ref()
            .is_none_or(|file| asked.file.contains(file.as_str()));
        let has_byte = match self.fault {
            Fault::Flip(byte) => (asked.offset..asked.offset + asked.len).contains(&byte),
            Fault::Errno(_) | Fault::Short(_) | Fault::Hold | Fault::Late(_) => true,
        };
        self.request == asked.request && file && asked.offset >= self.from && has_byte
    }
}

/// Formats the rule as [`Rule::from_str`] parses it.
impl Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.fault {
            Fault::Errno(errno) => match name_of(errno) {
                Some(name) => write!(f, "errno={name}")?,
                None => write!(f, "errno={errno}")?,
            },
            Fault::Short(bytes) => write!(f, "short={bytes}")?,
            Fault::Hold => f.write_str("hold")?,
            Fault::Late(time) => write!(f, "late={}", time.as_millis())?,
            Fault::Flip(byte) => write!(f, "flip={byte}")?,
        }
        match self.request {
            Request::Read => {}
            Request::Open => f.write_str(",on=open")?,
            Request::Stat => f.write_str(",on=stat")?,
        }
        if let Some(file) = &self.file {
            write!(f, ",file={file}")?;
        }
        for (name, value, plain) in [
            ("from", self.from, 0),
            ("after", self.after, 0),
            ("every", self.every, 1),
        ] {
            if value != plain {
                write!(f, ",{name}={value}")?;
            }
        }
        match self.times {
            Some(times) => write!(f, ",times={times}"),
            None => Ok(()),
        }
    }
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split(',');
        let mut rule = Self::always(fault(words.next().unwrap_or_default())?);
        for word in words {
            let (name, value) = word
                .split_once('=')
                .ok_or_else(|| format!("{word}: wanted name=value"))?;
            rule = match name {
                "on" => rule.on(request(value)?),
                "file" => rule.file(value),
                "from" => rule.from_byte(number(word, value)?),
                "after" => rule.after(number(word, value)?),
                "every" => rule.every(number(word, value)?),
                "times" => rule.times(number(word, value)?),
                _ => return Err(format!("{word}: {name} is unknown")),
            };
        }
        let of_reads = matches!(
            rule.fault,
            Fault::Short(_) | Fault::Late(_) | Fault::Flip(_)
        );
        if of_reads && rule.request != Request::Read {
            return Err(format!("{text}: such a fault strikes reads only"));
        }
        Ok(rule)
    }
}

fn fault(word: &str) -> Result<Fault, String> {
    let (name, value) = word.split_once('=').unwrap_or((word, ""));
    match name {
        "errno" => errno(word, value).map(Fault::Errno),
        "short" => Ok(Fault::Short(number(word, value)?)),
        "hold" if value.is_empty() => Ok(Fault::Hold),
        "late" => Ok(Fault::Late(Duration::from_millis(number(word, value)?))),
        "flip" => Ok(Fault::Flip(number(word, value)?)),
        _ => Err(format!(
            "{word}: wanted errno=, short=, hold, late= or flip="
        )),
    }
}

fn errno(word: &str, value: &str) -> Result<i32, String> {
    let named = ERRNOS.iter().find(|(name, _)| *name == value);
    let found = match named {
        Some((_, errno)) => errno.raw_os_error(),
        None => number(word, value)?,
    };
    // The kernel accepts no other numbers from a file system.
    (1..1000)
        .contains(&found)
        .then_some(found)
        .ok_or_else(|| format!("{word}: wanted a number from 1 to 999"))
}

fn name_of(errno: i32) -> Option<&'static str> {
    let named = ERRNOS
        .iter()
        .find(|(_, named)| named.raw_os_error() == errno);
    named.map(|(name, _)| *name)
}

fn request(value: &str) -> Result<Request, String> {
    match value {
        "read" => Ok(Request::Read),
        "open" => Ok(Request::Open),
        "stat" => Ok(Request::Stat),
        _ => Err(format!("on={value}: wanted read, open or stat")),
    }
}

fn number<T: FromStr>(word: &str, value: &str) -> Result<T, String> {
    value
        .parse()
        .map_err(|_| format!("{word}: wanted a number"))
}

/// Properties of a request that rules match on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<'a> {
    pub(super) request: Request,
    /// Path below the folder.
    pub(super) file: &'a str,
    /// Offset of a read; 0 for other requests.
    pub(super) offset: u64,
    /// Length of a read; 0 for other requests.
    pub(super) len: u64,
}

/// Rule with counts of the requests that it matched and struck.
#[derive(Debug)]
struct Counted {
    rule: Rule,
    seen: u64,
    struck: u64,
}

/// Active rules, in order. The first that strikes a request is the only one that does.
#[derive(Debug, Default)]
pub(super) struct Rules(Vec<Counted>);

impl Rules {
    pub(super) fn add(&mut self, rule: Rule) {
        self.0.push(Counted {
            rule,
            seen: 0,
            struck: 0,
        });
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns the fault for this request, and counts it as used.
    pub(super) fn take(&mut self, asked: &Asked<'_>) -> Option<Fault> {
        self.0.iter_mut().find_map(|counted| counted.take(asked))
    }
}

impl Counted {
    fn take(&mut self, asked: &Asked<'_>) -> Option<Fault> {
        let rule = &self.rule;
        if rule.times.is_some_and(|times| self.struck >= times) || !rule.matches(asked) {
            return None;
        }
        self.seen += 1;
        let turn = self.seen.checked_sub(rule.after + 1)?;
        if !turn.is_multiple_of(rule.every) {
            return None;
        }
        self.struck += 1;
        Some(rule.fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EIO: Fault = Fault::Errno(5);

    fn read(offset: u64, len: u64) -> Asked<'static> {
        Asked {
            request: Request::Read,
            file: "m-0.safetensors",
            offset,
            len,
        }
    }

    fn rules(rules: impl IntoIterator<Item = Rule>) -> Rules {
        let mut all = Rules::default();
        rules.into_iter().for_each(|rule| all.add(rule));
        all
    }

    #[test]
    fn rule_text_round_trips() {
        for text in [
            "errno=EIO",
            "errno=777,times=3",
            "short=0",
            "short=4097,on=read",
            "hold,on=open",
            "hold,on=stat,file=m-0",
            "late=20,from=4096,after=2,every=3,times=1",
            "flip=123456",
        ] {
            let rule: Rule = text.parse().expect(text);
            let shown = rule.to_string();
            assert_eq!(shown.parse(), Ok(rule), "{text}");
            assert_eq!(shown, text.replace(",on=read", ""));
        }
        assert_eq!("errno=5".parse(), Ok(Rule::always(EIO)));
        assert_eq!("errno=EIO,times=1".parse(), Ok(Rule::once(EIO)));
    }

    #[test]
    fn invalid_rule_error_names_mistake() {
        for (text, named) in [
            ("", "wanted errno="),
            ("hold=3", "hold=3"),
            ("errno=EWHAT", "errno=EWHAT"),
            ("errno=0", "1 to 999"),
            ("errno=1000", "1 to 999"),
            ("short=-1", "short=-1"),
            ("hold,on=write", "on=write"),
            ("hold,often", "name=value"),
            ("hold,often=1", "often is unknown"),
            ("short=1,on=open", "reads only"),
        ] {
            let reason = text.parse::<Rule>().expect_err(text);
            assert!(reason.contains(named), "{text}: {reason}");
        }
    }

    #[test]
    fn first_striking_rule_wins() {
        let mut rules = rules([
            Rule::once(Fault::Short(1)).from_byte(100),
            Rule::always(EIO).every(2).after(1),
        ]);
        let taken: Vec<_> = [0, 0, 0, 0, 100, 100]
            .map(|offset| rules.take(&read(offset, 10)))
            .into();
        let short = Some(Fault::Short(1));
        assert_eq!(taken, [None, Some(EIO), None, Some(EIO), short, None]);
        rules.clear();
        assert_eq!(rules.take(&read(0, 1)), None);
    }

    #[test]
    fn rule_strikes_matching_requests_only() {
        let mut rules = rules([
            Rule::always(Fault::Hold).on(Request::Open).file("m-1"),
            Rule::always(Fault::Flip(50)),
        ]);
        let open = |file| Asked {
            request: Request::Open,
            file,
            offset: 0,
            len: 0,
        };
        assert_eq!(rules.take(&open("m-0.safetensors")), None);
        assert_eq!(rules.take(&open("m-1.safetensors")), Some(Fault::Hold));
        assert_eq!(rules.take(&read(0, 50)), None);
        assert_eq!(rules.take(&read(50, 1)), Some(Fault::Flip(50)));
        assert_eq!(rules.take(&read(51, 9)), None);
    }
}
