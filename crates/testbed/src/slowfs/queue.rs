//! Reads that wait for their due time, the threads that respond to them then, and requests that are
//! held until they are released.
//!
//! Few threads suffice because they wait only for the clock: the real file is in memory or on a
//! fast disk.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fuser::{Errno, ReplyData};

use super::fault::{Asked, Fault, Request, Rule, Rules};
use super::options::Options;
use super::pace::Pace;

/// The kernel copies responses page by page: page-aligned memory saves half of the copies.
const PAGE_BYTES: usize = 4096;

/// Open file.
#[derive(Debug)]
pub(super) struct OpenFile {
    pub(super) file: File,
    /// Path below the folder.
    pub(super) name: String,
    /// Inode number in the mount, which selects the bandwidth that its reads take.
    pub(super) number: u64,
}

/// Read as the kernel sent it.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) file: Arc<OpenFile>,
    pub(super) offset: u64,
    pub(super) len: usize,
    pub(super) reply: ReplyData,
}

/// Counters of the requests to a mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Reads that arrived.
    pub reads: u64,
    /// Bytes that they requested.
    pub bytes: u64,
    /// Maximum number of reads in flight at one time.
    pub in_flight_max: u64,
    /// Requests struck by a fault.
    pub faults: u64,
    /// Requests that are held.
    pub held: u64,
}

/// One line, which `Served::parse` parses.
impl fmt::Display for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            reads,
            bytes,
            in_flight_max,
            faults,
            held,
        } = self;
        write!(
            f,
            "reads={reads} bytes={bytes} in_flight_max={in_flight_max} faults={faults} held={held}"
        )
    }
}

impl Served {
    /// Parses a line that ends with such a text.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let value = |name: &str| {
            let rest = line.split_once(&format!("{name}="))?.1;
            rest.split_whitespace().next()?.parse().ok()
        };
        Some(Self {
            reads: value("reads")?,
            bytes: value("bytes")?,
            in_flight_max: value("in_flight_max")?,
            faults: value("faults")?,
            held: value("held")?,
        })
    }
}

#[derive(Debug)]
struct Waiting {
    due: Duration,
    /// Order of arrival: reads that are due at the same time are completed in this order.
    number: u64,
    fault: Option<Fault>,
    /// Number of releases before its arrival: a later release means that it is not held any more.
    releases: u64,
    read: Read,
}

/// Request that is held until it is released. It is stored because dropping a reply sends a
/// response.
enum Held {
    Read(Read),
    /// Completes another request without a fault.
    Other(Box<dyn FnOnce() + Send>),
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(read) => read.fmt(f),
            Self::Other(_) => f.write_str("Other"),
        }
    }
}

impl Waiting {
    fn key(&self) -> (Duration, u64) {
        (self.due, self.number)
    }
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Waiting {}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

#[derive(Debug)]
struct State {
    pace: Pace,
    waiting: BinaryHeap<Reverse<Waiting>>,
    rules: Rules,
    held: Vec<Held>,
    releases: u64,
    /// True if a thread waits for the time of the first read. The others wait to be woken.
    is_watched: bool,
    in_flight: u64,
    served: Served,
}

/// All reads that are not completed yet.
#[derive(Debug)]
pub(super) struct Queue {
    start: Instant,
    state: Mutex<State>,
    arrived: Condvar,
    /// Signals that a request is held.
    holds: Condvar,
}

impl Queue {
    /// Creates an empty queue, and starts the threads that complete its reads. They end with the
    /// process.
    pub(super) fn start(options: &Options) -> io::Result<Arc<Self>> {
        let queue = Arc::new(Self {
            start: Instant::now(),
            state: Mutex::new(State {
                pace: Pace::new(options.clone()),
                rules: Rules::default(),
                waiting: BinaryHeap::new(),
                held: Vec::new(),
                releases: 0,
                is_watched: false,
                in_flight: 0,
                served: Served::default(),
            }),
            arrived: Condvar::new(),
            holds: Condvar::new(),
        });
        for rule in &options.rules {
            queue.add(rule.clone());
        }
        for index in 0..options.workers {
            let queue = Arc::clone(&queue);
            std::thread::Builder::new()
                .name(format!("slowfs-{index}"))
                .spawn(move || queue.work())?;
        }
        Ok(queue)
    }

    pub(super) fn push(&self, read: Read) {
        let mut state = self.lock();
        let now = self.start.elapsed();
        let mut due = state.pace.due(now, read.file.number, read.len as u64);
        let ruled = state.rules.take(&Asked {
            request: Request::Read,
            file: &read.file.name,
            offset: read.offset,
            len: read.len as u64,
        });
        let fault = ruled.or_else(|| state.pace.fault(read.offset, read.len));
        if let Some(Fault::Late(time)) = fault {
            due += time;
        }
        state.in_flight += 1;
        state.served.reads += 1;
        state.served.bytes += read.len as u64;
        state.served.in_flight_max = state.served.in_flight_max.max(state.in_flight);
        state.served.faults += u64::from(fault.is_some());
        let waiting = Waiting {
            due,
            number: state.served.reads,
            fault,
            releases: state.releases,
            read,
        };
        self.wait_for(state, waiting);
    }

    /// Adds a read to the waiting ones, and wakes the threads that need to know.
    fn wait_for(&self, mut state: MutexGuard<'_, State>, waiting: Waiting) {
        let due = waiting.due;
        let first = state.waiting.peek().map(|Reverse(first)| first.due);
        state.waiting.push(Reverse(waiting));
        drop(state);
        match first {
            None => self.arrived.notify_one(),
            // The thread that waits for a later time must know, and cannot be woken alone.
            Some(first) if due < first => self.arrived.notify_all(),
            // The thread that waits for the first one will see to this one.
            Some(_) => {}
        }
    }

    /// Completes a request other than a read: without a fault, with an error, or when it is
    /// released.
    pub(super) fn admit(
        &self,
        request: Request,
        file: &str,
        answer: impl FnOnce(Result<(), Errno>) + Send + 'static,
    ) {
        let mut state = self.lock();
        let fault = state.rules.take(&Asked {
            request,
            file,
            offset: 0,
            len: 0,
        });
        state.served.faults += u64::from(fault.is_some());
        match fault {
            Some(Fault::Errno(errno)) => {
                drop(state);
                answer(Err(Errno::from_i32(errno)));
            }
            Some(Fault::Hold) => self.hold(state, Held::Other(Box::new(move || answer(Ok(()))))),
            // The other faults are for reads.
            Some(Fault::Short(_) | Fault::Late(_) | Fault::Flip(_)) | None => {
                drop(state);
                answer(Ok(()));
            }
        }
    }

    fn hold(&self, mut state: MutexGuard<'_, State>, held: Held) {
        state.held.push(held);
        state.served.held = state.held.len() as u64;
        self.holds.notify_all();
    }

    /// Adds a rule behind the others.
    pub(super) fn add(&self, rule: Rule) {
        self.lock().rules.add(rule);
    }

    /// Drops all rules.
    pub(super) fn clear(&self) {
        self.lock().rules.clear();
    }

    /// Completes everything that is held, without faults.
    pub(super) fn release(&self) {
        let held = {
            let mut state = self.lock();
            state.served.held = 0;
            state.releases += 1;
            std::mem::take(&mut state.held)
        };
        for held in held {
            match held {
                Held::Other(answer) => answer(),
                Held::Read(read) => {
                    let state = self.lock();
                    let waiting = Waiting {
                        due: self.start.elapsed(),
                        number: 0,
                        fault: None,
                        releases: state.releases,
                        read,
                    };
                    self.wait_for(state, waiting);
                }
            }
        }
    }

    /// Waits until so many requests are held, at most for `timeout`. Returns the number held.
    pub(super) fn wait_for_held(&self, count: u64, timeout: Duration) -> u64 {
        let wait = |state: &mut State| state.served.held < count;
        let waited = self
            .holds
            .wait_timeout_while(self.lock(), timeout, wait)
            .unwrap_or_else(PoisonError::into_inner);
        waited.0.served.held
    }

    pub(super) fn served(&self) -> Served {
        self.lock().served
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A count that is off by one is better than a reader that waits for ever.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut buffer = Buffer::default();
        loop {
            let Waiting {
                fault,
                releases,
                read,
                ..
            } = self.next();
            let mut state = self.lock();
            if fault == Some(Fault::Hold) && releases == state.releases {
                self.hold(state, Held::Read(read));
                continue;
            }
            // Before the response: the reader goes on with it, and may query the counters.
            state.in_flight -= 1;
            drop(state);
            answer(read, fault, &mut buffer);
        }
    }

    /// Waits for the next read that is due.
    fn next(&self) -> Waiting {
        let mut state = self.lock();
        loop {
            let now = self.start.elapsed();
            let due = state.waiting.peek().map(|Reverse(first)| first.due);
            state = match due {
                Some(due) if due > now && !state.is_watched => {
                    state.is_watched = true;
                    let woken = self.arrived.wait_timeout(state, due.saturating_sub(now));
                    let (mut state, _) = woken.unwrap_or_else(PoisonError::into_inner);
                    state.is_watched = false;
                    state
                }
                Some(due) if due <= now => {
                    let Reverse(first) = state.waiting.pop().expect("it was just looked at");
                    // This thread will be busy: another one takes over the remaining reads.
                    if !state.waiting.is_empty() && !state.is_watched {
                        self.arrived.notify_one();
                    }
                    return first;
                }
                None | Some(_) => self
                    .arrived
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

/// Reused page-aligned memory.
#[derive(Debug, Default)]
struct Buffer(Vec<u8>);

impl Buffer {
    fn get(&mut self, len: usize) -> &mut [u8] {
        if self.0.len() < len + PAGE_BYTES {
            self.0 = vec![0; len + PAGE_BYTES];
        }
        let start = self.0.as_ptr().align_offset(PAGE_BYTES);
        &mut self.0[start..start + len]
    }
}

fn answer(read: Read, fault: Option<Fault>, buffer: &mut Buffer) {
    let len = match fault {
        Some(Fault::Errno(errno)) => return read.reply.error(Errno::from_i32(errno)),
        Some(Fault::Short(len)) => read.len.min(len),
        Some(Fault::Hold | Fault::Late(_) | Fault::Flip(_)) | None => read.len,
    };
    let bytes = buffer.get(len);
    let filled = match fill(&read.file.file, bytes, read.offset) {
        Ok(filled) => &mut bytes[..filled],
        Err(error) => return read.reply.error(error.into()),
    };
    if let Some(Fault::Flip(byte)) = fault
        && let Some(byte) = byte.checked_sub(read.offset)
        && let Some(byte) = usize::try_from(byte)
            .ok()
            .and_then(|byte| filled.get_mut(byte))
    {
        *byte = !*byte;
    }
    read.reply.data(filled);
}

/// Reads all of `bytes`, or up to the end of the file.
fn fill(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn served_summary_round_trips() {
        let served = Served {
            reads: 1,
            bytes: 22,
            in_flight_max: 333,
            faults: 4444,
            held: 55555,
        };
        assert_eq!(Served::parse(&format!("test … {served} ")), Some(served));
        assert_eq!(Served::parse("reads=1"), None);
    }

    #[test]
    fn buffers_are_page_aligned() {
        let mut buffer = Buffer::default();
        for len in [1, 100_000, 7, 1 << 20] {
            let bytes = buffer.get(len);
            assert_eq!((bytes.len(), bytes.as_ptr().addr() % PAGE_BYTES), (len, 0));
        }
    }
}
