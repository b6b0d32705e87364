//! What a slow file system is told: how slow, how it fails, how the kernel is to use it. As values and as words of a command line.

use std::ffi::OsString;
use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use super::fault::Rule;

/// Help for people.
pub const USAGE: &str = "\
slowfs BACKING MOUNT_POINT [OPTION]...
Shows the folder BACKING, read-only, at the empty folder MOUNT_POINT. Prints `mounted` when it is there. Unmounts and ends on
SIGTERM, SIGINT and SIGHUP, when a pipe that is its standard input is closed, and, without such a pipe, when its parent ends.

  --latency-ms MS     from a read's turn to its answer (0; fractions are fine)
  --file-mb-s N       bandwidth of each file, 10^6 bytes per second (0: no limit)
  --total-mb-s N      bandwidth of all files together (0: no limit)
  --direct on|off     past the page cache, whatever readers ask for (off: readers choose with O_DIRECT)
  --async-dio on|off  the kernel sends direct reads of io_uring and aio without waiting for them (on; FUSE_ASYNC_DIO)
  --background N      requests that the kernel sends without anybody waiting for them (1024; max_background, its own default is 12)
  --workers N         threads that answer (2)
  --eio-every N       every Nth read fails with EIO (0: none)
  --short-every N     every Nth read brings half of what was asked for (0: none)
  --hang-every N      every Nth read is never answered (0: none)
  --fault-from BYTE   faults count and strike only reads at or past this byte of their file (0)
  --fault-max N       so many faults strike, and no more (0: no limit)
  --ttl-ms MS         for how long the kernel believes what it was told of a name or a file (1000; 0 to be asked each time)
  --fault RULE        something goes wrong, see below; may be given several times, and the first that strikes counts
  --detached          goes on when its parent ends

RULE is a fault and, with commas, what it strikes (all reads, for ever):
  errno=EIO  short=BYTES (0: none)  hold (no answer until `release`)  late=MS  flip=BYTE (all bits of that byte of a file)
  on=read|open|stat  file=TEXT (in its path)  from=BYTE  after=N (let N pass)  every=N (the first of N)  times=N

While it runs, a pipe that is its standard input takes commands, one per line, each answered by a line:
  fault RULE    one more rule, behind the others
  clear         no rules any more, and an answer for everything that is held
  release       an answer for everything that is held
  held N MS     waits until N requests are held, at most so long; says how many are
  served        what was served so far
What happens to the files of BACKING happens to those that are shown: truncate, rewrite or replace them there.";

/// How slow, how it fails, how the kernel is to use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// From a read's turn to its answer.
    pub latency: Duration,
    /// Bandwidth of each file, 10⁶ bytes per second; 0 for no limit.
    pub file_mb_s: u64,
    /// Bandwidth of all files together, 10⁶ bytes per second; 0 for no limit.
    pub total_mb_s: u64,
    /// Past the page cache, whatever readers ask for (`FOPEN_DIRECT_IO`).
    pub direct: bool,
    /// Whether the kernel sends direct reads of `io_uring` and aio without waiting for them (`FUSE_ASYNC_DIO`). Without it, such
    /// reads run one after another, in the thread that submits them.
    pub async_dio: bool,
    /// Requests in flight that nobody waits for in a system call: readahead, and direct reads with `async_dio`.
    pub background: u16,
    /// Threads that answer.
    pub workers: usize,
    /// Every how-manyth read fails with EIO; 0 for none.
    pub eio_every: u64,
    /// Every how-manyth read brings half of what was asked for; 0 for none.
    pub short_every: u64,
    /// Every how-manyth read is never answered; 0 for none.
    pub hang_every: u64,
    /// Faults count and strike only reads at or past this byte of their file: headers can be spared.
    pub fault_from: u64,
    /// So many of these faults strike, and no more; 0 for no limit.
    pub fault_max: u64,
    /// For how long the kernel believes what it was told of a name or a file.
    pub ttl: Duration,
    /// What goes wrong from the start, beside the faults above; more can be added while it runs.
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
            // Never the limit: a reader would need 4 GiB in flight in requests of 1 MiB and four times that in extents of 4 MiB.
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

/// Everything that the command line says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// The folder that is shown.
    pub backing: PathBuf,
    /// Where.
    pub mount_point: PathBuf,
    /// How.
    pub options: Options,
    /// Whether it goes on when its parent ends.
    pub is_detached: bool,
}

impl Setup {
    /// What `words` ask for, without the program's name.
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
                    let value = words.next().and_then(|value| value.into_string().ok());
                    let value = value.ok_or_else(|| format!("{name} needs a value"))?;
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

    /// The words that [`Self::parse`] makes this of.
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
        let rules = options.rules.iter();
        let rules = rules.map(|rule| ("--fault", rule.to_string()));
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
