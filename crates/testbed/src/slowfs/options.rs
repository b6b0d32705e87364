//! Options of a slow file system: its speed, its faults, and the kernel's use of it. As values and
//! as words of a command line.

use std::ffi::OsString;
use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use super::fault::Rule;

/// Help text.
pub const USAGE: &str = "\
slowfs BACKING MOUNT_POINT [OPTION]...
Shows the folder BACKING, read-only, at the empty folder MOUNT_POINT. Prints `mounted` once it is mounted. Unmounts and exits on
SIGTERM, SIGINT and SIGHUP, when a pipe that is its standard input is closed, and, without such a pipe, when its parent exits.

  --latency-ms MS     time from a read's turn to its response (0; may be fractional)
  --file-mb-s N       bandwidth of each file, 10^6 bytes per second (0: no limit)
  --total-mb-s N      bandwidth of all files together (0: no limit)
  --direct on|off     bypass the page cache for all readers (off: readers choose with O_DIRECT)
  --async-dio on|off  the kernel sends direct reads of io_uring and aio without waiting for them (on; FUSE_ASYNC_DIO)
  --background N      limit of background requests in flight (1024; max_background, the kernel's default is 12)
  --workers N         threads that respond (2)
  --eio-every N       every Nth read fails with EIO (0: none)
  --short-every N     every Nth read returns half of the requested bytes (0: none)
  --hang-every N      every Nth read never returns (0: none)
  --fault-from BYTE   faults count and strike only reads at or past this byte of their file (0)
  --fault-max N       maximum number of these faults (0: no limit)
  --ttl-ms MS         time for which the kernel caches names and attributes (1000; 0: no caching)
  --fault RULE        inject a fault, see below; may be given several times, and the first that strikes counts
  --detached          continue when the parent exits

RULE is a fault, followed by the requests that it strikes, separated by commas (all reads, for ever):
  errno=EIO  short=BYTES (0: none)  hold (no response until `release`)  late=MS  flip=BYTE (all bits of that byte of a file)
  on=read|open|stat  file=TEXT (in its path)  from=BYTE  after=N (let N pass)  every=N (the first of N)  times=N

While it runs, a pipe that is its standard input takes commands, one per line, each with a response of one line:
  fault RULE    adds a rule, behind the others
  clear         drops all rules, and releases everything that is held
  release       releases everything that is held
  held N MS     waits until N requests are held, at most MS milliseconds; prints the number held
  served        prints counters of the requests served so far
Changes to the files of BACKING are visible in the mount: truncate, rewrite or replace them there.";

/// Speed and faults of a slow file system, and the kernel's use of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Time from a read's turn to its response.
    pub latency: Duration,
    /// Bandwidth of each file, 10⁶ bytes per second; 0 for no limit.
    pub file_mb_s: u64,
    /// Bandwidth of all files together, 10⁶ bytes per second; 0 for no limit.
    pub total_mb_s: u64,
    /// Bypasses the page cache for all readers (`FOPEN_DIRECT_IO`).
    pub direct: bool,
    /// Lets the kernel send direct reads of `io_uring` and aio without waiting for them
    /// (`FUSE_ASYNC_DIO`). Otherwise such reads run one after another, in the thread that submits
    /// them.
    pub async_dio: bool,
    /// Limit of background requests in flight, for which no system call waits: readahead, and
    /// direct reads with `async_dio`.
    pub background: u16,
    /// Number of threads that respond.
    pub workers: usize,
    /// Period of reads that fail with EIO; 0 for none.
    pub eio_every: u64,
    /// Period of reads that return half of the requested bytes; 0 for none.
    pub short_every: u64,
    /// Period of reads that never return; 0 for none.
    pub hang_every: u64,
    /// First byte of a file at which faults count and strike reads: headers can be spared.
    pub fault_from: u64,
    /// Maximum number of these faults; 0 for no limit.
    pub fault_max: u64,
    /// Time for which the kernel caches names and attributes.
    pub ttl: Duration,
    /// Rules from the start, in addition to the faults above; more can be added while it runs.
    pub rules: Vec<Rule>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            latency: Duration::ZERO,
            file_mb_s: 0,
            total_mb_s: 0,
            direct: false,
            async_dio: true,
            // Never the limit: a reader would need 4 GiB in flight in requests of 1 MiB and four
            // times that in extents of 4 MiB.
            background: 1024,
            workers: 2,
            eio_every: 0,
            short_every: 0,
            hang_every: 0,
            fault_from: 0,
            fault_max: 0,
            ttl: Duration::from_secs(1),
            rules: Vec::new(),
        }
    }
}

/// Parsed command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// Folder to show.
    pub backing: PathBuf,
    /// Mount point.
    pub mount_point: PathBuf,
    /// Options.
    pub options: Options,
    /// True if it continues when its parent exits.
    pub is_detached: bool,
}

impl Setup {
    /// Parses `words`, without the program's name.
    pub fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Self, String> {
        let mut options = Options::default();
        let mut is_detached = false;
        let mut paths = Vec::new();
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            let name = word.to_str().filter(|text| text.starts_with("--"));
            match name {
                None => paths.push(PathBuf::from(word)),
                Some("--detached") => is_detached = true,
                Some(name) => {
                    let value = words
                        .next()
                        .and_then(|value| value.into_string().ok())
                        .ok_or_else(|| format!("{name} needs a value"))?;
                    options.set(name, &value)?;
                }
            }
        }
        let [backing, mount_point] = <[PathBuf; 2]>::try_from(paths)
            .map_err(|paths| format!("found {} paths, wanted two", paths.len()))?;
        Ok(Self {
            backing,
            mount_point,
            options,
            is_detached,
        })
    }

    /// Returns words that [`Self::parse`] parses to this value.
    pub fn words(&self) -> Vec<OsString> {
        let options = &self.options;
        let switch = |is_on| String::from(if is_on { "on" } else { "off" });
        let millis = |time: Duration| (time.as_secs_f64() * 1000.0).to_string();
        let values = [
            ("--latency-ms", millis(options.latency)),
            ("--file-mb-s", options.file_mb_s.to_string()),
            ("--total-mb-s", options.total_mb_s.to_string()),
            ("--direct", switch(options.direct)),
            ("--async-dio", switch(options.async_dio)),
            ("--background", options.background.to_string()),
            ("--workers", options.workers.to_string()),
            ("--eio-every", options.eio_every.to_string()),
            ("--short-every", options.short_every.to_string()),
            ("--hang-every", options.hang_every.to_string()),
            ("--fault-from", options.fault_from.to_string()),
            ("--fault-max", options.fault_max.to_string()),
            ("--ttl-ms", millis(options.ttl)),
        ];
        let rules = options
            .rules
            .iter()
            .map(|rule| ("--fault", rule.to_string()));
        let mut words = vec![self.backing.clone().into(), self.mount_point.clone().into()];
        words.extend(
            values
                .into_iter()
                .chain(rules)
                .flat_map(|(name, value)| [name.into(), value.into()]),
        );
        if self.is_detached {
            words.push("--detached".into());
        }
        words
    }
}

impl Options {
    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "--latency-ms" => self.latency = time(name, value)?,
            "--file-mb-s" => self.file_mb_s = number(name, value)?,
            "--total-mb-s" => self.total_mb_s = number(name, value)?,
            "--direct" => self.direct = switch(name, value)?,
            "--async-dio" => self.async_dio = switch(name, value)?,
            "--background" => self.background = at_least_one(name, value)?,
            "--workers" => self.workers = at_least_one(name, value)?,
            "--eio-every" => self.eio_every = number(name, value)?,
            "--short-every" => self.short_every = number(name, value)?,
            "--hang-every" => self.hang_every = number(name, value)?,
            "--fault-from" => self.fault_from = number(name, value)?,
            "--fault-max" => self.fault_max = number(name, value)?,
            "--ttl-ms" => self.ttl = time(name, value)?,
            "--fault" => {
                let rule = value.parse();
                self.rules
                    .push(rule.map_err(|reason| format!("{name} {reason}"))?);
            }
            _ => return Err(format!("{name} is unknown")),
        }
        Ok(())
    }
}

fn number<T: FromStr>(name: &str, value: &str) -> Result<T, String>
where
    T::Err: Display,
{
    value
        .parse()
        .map_err(|error| format!("{name} {value}: {error}"))
}

fn at_least_one<T: FromStr + Default + PartialEq>(name: &str, value: &str) -> Result<T, String>
where
    T::Err: Display,
{
    number(name, value).and_then(|number: T| {
        if number == T::default() {
            Err(format!("{name} must be 1 at least"))
        } else {
            Ok(number)
        }
    })
}

fn time(name: &str, value: &str) -> Result<Duration, String> {
    let millis: f64 = number(name, value)?;
    Duration::try_from_secs_f64(millis / 1000.0).map_err(|error| format!("{name} {value}: {error}"))
}

fn switch(name: &str, value: &str) -> Result<bool, String> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("{name} {value}: wanted on or off")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Setup, String> {
        Setup::parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn setup_words_round_trip() {
        let line = "/b /m --latency-ms 1.5 --file-mb-s 100 --total-mb-s 2000 --direct on --async-dio off --background 64 \
                    --workers 3 --eio-every 7 --short-every 8 --hang-every 9 --fault-from 4096 --fault-max 6 \
                    --ttl-ms 0 --fault errno=EIO,times=2 --fault hold,on=open --detached";
        let setup = parse(line).expect("good");
        assert_eq!(setup.options.latency, Duration::from_micros(1500));
        assert_eq!(Setup::parse(setup.words()), Ok(setup.clone()));
        assert_eq!(
            (setup.options.rules.len(), setup.options.ttl),
            (2, Duration::ZERO)
        );
        let Options {
            background,
            eio_every,
            short_every,
            hang_every,
            ..
        } = setup.options;
        assert_eq!(
            (background, eio_every, short_every, hang_every),
            (64, 7, 8, 9)
        );
        let plain = parse("/b /m").expect("good");
        assert_eq!(plain.options, Options::default());
        assert_eq!(Setup::parse(plain.words()), Ok(plain.clone()));
    }

    #[test]
    fn usage_names_every_option() {
        let setup = parse("/b /m --fault hold --detached").expect("good");
        for word in setup.words() {
            let word = word.to_str().expect("ASCII");
            assert!(
                !word.starts_with("--") || USAGE.contains(&format!("  {word} ")),
                "{word}"
            );
        }
    }

    #[test]
    fn invalid_option_error_names_mistake() {
        for (line, named) in [
            ("/b", "found 1 paths"),
            ("/b /m --latency 3", "--latency is unknown"),
            ("/b /m --workers", "needs a value"),
            ("/b /m --workers 0", "1 at least"),
            ("/b /m --direct maybe", "on or off"),
            ("/b /m --latency-ms -1", "--latency-ms -1"),
            ("/b /m --background 70000", "--background 70000"),
            ("/b /m --fault errno=5,of=3", "--fault of=3: of is unknown"),
        ] {
            let reason = parse(line).expect_err(line);
            assert!(reason.contains(named), "{line}: {reason}");
        }
    }
}
