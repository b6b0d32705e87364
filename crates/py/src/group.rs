//! Groups of ranks for Python: one of the core's, or an object that exchanges messages in Python.
//!
//! `python/tload/_ranks/group.py` wraps them; `torch_group.py` beside it has the object that uses
//! the store of `torch.distributed`.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyBaseException, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tload::internal::process_id;
use tload::{Error, ErrorKind, LocalGroup};
use tload_pymemory::error::exception;

use crate::forked::Owned;
use crate::interrupt::{self, Caller};
use crate::options;
use crate::raised::{Raised, is_order, shutting_down};
use crate::sharding::count;

/// Time for an interrupted exchange to end, so that its thread is not in Python when that exits.
const INTERRUPT_GRACE: Duration = Duration::from_secs(1);

/// The processes that load together, seen from one of them.
#[pyclass(frozen, module = "tload._tload")]
#[derive(Debug)]
pub(crate) struct Group {
    rank: usize,
    size: usize,
    process: u32,
    /// `None` once closed.
    members: Mutex<Option<Owned<Members>>>,
}

/// The implementation of a group.
#[derive(Clone, Debug)]
enum Members {
    Local(Arc<LocalGroup>),
    /// Object with `rank`, `size`, `exchange(message, timeout) -> list[bytes]`, `interrupt()` and
    /// `close()`.
    Python(Arc<Py<PyAny>>),
}

#[pymethods]
impl Group {
    /// Joins the processes of this node that meet at a path.
    #[staticmethod]
    fn local(
        py: Python<'_>,
        path: PathBuf,
        rank: isize,
        size: isize,
        timeout: f64,
    ) -> PyResult<Self> {
        let (rank, size) = (count(py, "rank", rank)?, count(py, "size", size)?);
        let timeout = duration(timeout)?;
        let join = move || LocalGroup::join(&path, rank, size, timeout);
        let joined = interrupt::run(py, join)?;
        Ok(Self::new(rank, size, Members::Local(Arc::new(joined))))
    }

    /// Makes a group of an object that exchanges messages.
    #[staticmethod]
    fn over(members: &Bound<'_, PyAny>) -> PyResult<Self> {
        let rank = members.getattr("rank")?.extract()?;
        let size = members.getattr("size")?.extract()?;
        let members = Members::Python(Arc::new(members.clone().unbind()));
        Ok(Self::new(rank, size, members))
    }

    #[getter]
    fn rank(&self) -> usize {
        self.rank
    }

    #[getter]
    fn size(&self) -> usize {
        self.size
    }

    #[getter]
    fn is_closed(&self) -> bool {
        self.lock().is_none()
    }

    /// Sends a message to every rank, and returns those of all ranks.
    fn exchange<'py>(
        &self,
        py: Python<'py>,
        message: Vec<u8>,
        timeout: f64,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let deadline = Instant::now() + duration(timeout)?;
        let raised = Raised::default();
        let joining = self.join(py, &raised)?;
        let group = Arc::clone(&joining.group);
        let messages = joining
            .run(py, move |_| Ok(group.exchange(&message, deadline)))?
            .map_err(|error| raised.exception(py, &error))?;
        Ok(messages.iter().map(|each| PyBytes::new(py, each)).collect())
    }

    /// Tells the other ranks that this one does not begin the load that they begin, because of
    /// `error`.
    fn give_up(
        &self,
        py: Python<'_>,
        error: Bound<'_, PyBaseException>,
        options: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let options = options::read(options)?;
        // Nothing can be told in a group that is closed, or that belongs to another process.
        let Ok(joining) = self.join(py, &Raised::default()) else {
            return Ok(());
        };
        let raised = PyErr::from_value(error.into_any());
        let unknown = || Error::new(ErrorKind::InvalidRequest, raised.to_string());
        let reason = from_exception(py, &raised).unwrap_or_else(unknown);
        let group = Arc::clone(&joining.group);
        joining.run(py, move |_| {
            tload::ranks::give_up(&*group, &reason, &options);
            Ok(())
        })
    }

    /// Leaves the group. Loads that run go on. In a forked process, does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.is_forked() {
            return Ok(());
        }
        let members = self.lock().take();
        if let Some(Members::Python(object)) = members.as_deref() {
            object.bind(py).call_method0("close")?;
        }
        py.detach(|| drop(members));
        Ok(())
    }
}

impl Group {
    fn new(rank: usize, size: usize, members: Members) -> Self {
        Self {
            rank,
            size,
            process: process_id(),
            members: Mutex::new(Some(Owned::new(members))),
        }
    }

    /// Returns the group for one load, which keeps exceptions of Python in `raised`.
    pub(crate) fn join(&self, py: Python<'_>, raised: &Raised) -> PyResult<Joining> {
        if self.is_forked() {
            let message = format!(
                "the group was joined in process {} and is used in process {}, a fork of it",
                self.process,
                process_id()
            );
            let error = Error::new(ErrorKind::InvalidRequest, message)
                .with_hint("join the group in the process that loads");
            return Err(exception(py, &error));
        }
        let members = self.lock().as_deref().cloned();
        // Without the lock: making an exception runs Python.
        let members = members.ok_or_else(|| {
            let error = Error::new(ErrorKind::InvalidRequest, "the group is closed")
                .with_hint("load inside the with block, or join a new group on every rank");
            exception(py, &error)
        })?;
        let group: Arc<dyn tload::Group> = match &members {
            Members::Local(local) => Arc::clone(local) as _,
            Members::Python(object) => Arc::new(PythonGroup {
                object: Arc::clone(object),
                rank: self.rank,
                size: self.size,
                raised: raised.clone(),
            }),
        };
        Ok(Joining { group, members })
    }

    fn is_forked(&self) -> bool {
        self.process != process_id()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Owned<Members>>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A group at the start of one load.
pub(crate) struct Joining {
    pub(crate) group: Arc<dyn tload::Group>,
    members: Members,
}

impl Joining {
    /// Runs `work`, which may exchange messages, as [`interrupt::run_calling`]. Ctrl-C interrupts
    /// an exchange in Python, so that no thread is left in it when Python exits.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(Caller) -> tload::Result<T> + Send + 'static,
    ) -> PyResult<T> {
        let (running, ended) = mpsc::channel::<()>();
        let outcome = interrupt::run_calling(py, move |caller| {
            let _running = running;
            work(caller)
        });
        let is_running = matches!(ended.try_recv(), Err(mpsc::TryRecvError::Empty));
        if let (true, Members::Python(object)) = (is_running, &self.members) {
            object.bind(py).call_method0("interrupt")?;
            let _ = py.detach(move || ended.recv_timeout(INTERRUPT_GRACE));
        }
        outcome
    }
}

/// A group that exchanges its messages in Python.
#[derive(Debug)]
struct PythonGroup {
    object: Arc<Py<PyAny>>,
    rank: usize,
    size: usize,
    raised: Raised,
}

impl tload::Group for PythonGroup {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn exchange(&self, message: &[u8], deadline: Instant) -> tload::Result<Vec<Vec<u8>>> {
        let exchanged = Python::try_attach(|py| {
            let left = deadline.saturating_duration_since(Instant::now());
            let arguments = (PyBytes::new(py, message), left.as_secs_f64());
            let messages = self.object.bind(py).call_method1("exchange", arguments);
            messages
                .and_then(|messages| messages.extract())
                .map_err(|raised| self.error(py, raised))
        });
        exchanged.unwrap_or_else(|| Err(shutting_down()))
    }

    fn transport(
        &self,
        leaders: &[usize],
        deadline: Instant,
    ) -> tload::Result<Option<Arc<dyn tload::ranks::Transport>>> {
        let connected = Python::try_attach(|py| {
            let left = deadline.saturating_duration_since(Instant::now());
            let arguments = (leaders.to_vec(), left.as_secs_f64());
            let connected = self
                .object
                .bind(py)
                .call_method1("transport", arguments)
                .map_err(|raised| self.error(py, raised))?;
            let wrap = |object: Bound<'_, PyAny>| -> Arc<dyn tload::ranks::Transport> {
                Arc::new(PythonTransport {
                    object: object.unbind(),
                })
            };
            Ok((!connected.is_none()).then(|| wrap(connected)))
        });
        connected.unwrap_or_else(|| Err(shutting_down()))
    }
}

/// Time that an operation of a [`PythonTransport`] has at least, once it runs. Other threads may
/// keep the interpreter's lock past the deadline, which is no fault of the peer.
const GRACE: Duration = Duration::from_secs(1);

/// Connections that send and receive in Python, on the core's threads.
#[derive(Debug)]
struct PythonTransport {
    /// Object with `send(to, address, length, timeout)`, `receive(…)` and `close()`.
    object: Py<PyAny>,
}

impl PythonTransport {
    fn call(
        &self,
        method: &str,
        peer: usize,
        address: usize,
        length: usize,
        deadline: Instant,
    ) -> tload::Result<()> {
        let called = Python::try_attach(|py| {
            let left = deadline.saturating_duration_since(Instant::now());
            let arguments = (peer, address, length, left.max(GRACE).as_secs_f64());
            let called = self.object.bind(py).call_method1(method, arguments);
            called.map(drop).map_err(|raised| {
                from_exception(py, &raised).unwrap_or_else(|| {
                    let message = "the connection between the nodes failed";
                    Error::new(ErrorKind::Peer, message).with_source(raised.to_string())
                })
            })
        });
        called.unwrap_or_else(|| Err(shutting_down()))
    }
}

impl tload::ranks::Transport for PythonTransport {
    fn send(&self, to: usize, bytes: &[u8], deadline: Instant) -> tload::Result<()> {
        let address = bytes.as_ptr().expose_provenance();
        self.call("send", to, address, bytes.len(), deadline)
    }

    fn receive(&self, from: usize, bytes: &mut [u8], deadline: Instant) -> tload::Result<()> {
        let address = bytes.as_mut_ptr().expose_provenance();
        self.call("receive", from, address, bytes.len(), deadline)
    }
}

impl Drop for PythonTransport {
    fn drop(&mut self) {
        // The connections end now, not when Python next runs. At its end, it closes them itself.
        let _ = Python::try_attach(|py| self.object.bind(py).call_method0("close").map(drop));
    }
}

impl PythonGroup {
    /// Returns the core's error for an exception of the object.
    fn error(&self, py: Python<'_>, raised: PyErr) -> Error {
        if let Some(error) = from_exception(py, &raised) {
            if let Some(cause) = raised.cause(py) {
                self.raised.put(cause);
            }
            return error;
        }
        let failed = "the exchange of messages between the ranks failed";
        self.raised
            .keep(py, raised, ErrorKind::InvalidRequest, failed)
    }
}

/// Returns an error of the package `tload` as the core's; none for another exception.
fn from_exception(py: Python<'_>, raised: &PyErr) -> Option<Error> {
    if is_order(py, raised) {
        return None;
    }
    let value = raised.value(py);
    let name: String = value.getattr("kind").ok()?.extract().ok()?;
    let kind = ErrorKind::ALL
        .into_iter()
        .find(|kind| kind.name() == name)?;
    let ranks: Vec<usize> = value.getattr("ranks").ok()?.extract().ok()?;
    let hint: Option<String> = value.getattr("hint").ok()?.extract().ok()?;
    let text = value.str().ok()?.to_str().ok()?.to_owned();
    // The hint is the last line of the text.
    let message = text.lines().next().unwrap_or_default();
    let error = Error::new(kind, message).with_ranks(ranks);
    Some(match hint {
        Some(hint) => error.with_hint(hint),
        None => error,
    })
}

pub(crate) fn duration(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|timeout| Instant::now().checked_add(*timeout).is_some())
        .ok_or_else(|| PyValueError::new_err("timeout is out of range"))
}
