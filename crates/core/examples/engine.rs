//! An engine of your own, which reads files without threads of its own: a job is read when the lane
//! asks for results. Checks that it keeps the contract of engines:
//! `cargo run -p tload --example engine`.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions, write};
use std::io::ErrorKind::UnexpectedEof;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use tload::extend::{Done, Engine, Job, Transfer, Wait};
use tload::{Error, ErrorKind};
use tload_testing::conformance::{EngineRequest, EngineUnderTest, engine_suite};

struct ReadAt {
    files: Vec<(PathBuf, File)>,
    jobs: VecDeque<Job>,
}

impl ReadAt {
    fn read(&self, job: Job) -> Done {
        let (path, file) = &self.files[job.source];
        let mut bytes = vec![0; job.needed];
        let result = file.read_exact_at(&mut bytes, job.offset).map_err(|error| {
            let error = if error.kind() == UnexpectedEof {
                Error::new(ErrorKind::Changed, "the file has become shorter")
            } else {
                Error::from_io("cannot read", error)
            };
            let range = job.offset..job.offset + job.needed as u64;
            error.with_location(path.display()).with_range(range)
        });
        Done {
            extent: job.extent,
            // On failure, dropping the lease frees its window.
            result: result.map(|()| job.lease.fill_from(&bytes)),
            window: None,
            transfer: Transfer {
                buffered_bytes: job.needed as u64,
                ..Transfer::default()
            },
        }
    }
}

impl Engine for ReadAt {
    fn depth(&self) -> usize {
        16
    }

    fn in_flight(&self) -> usize {
        self.jobs.len()
    }

    fn submit(&mut self, job: Job) {
        self.jobs.push_back(job);
    }

    fn reap(&mut self, _: Wait, done: &mut Vec<Done>) {
        let job = self.jobs.pop_front();
        done.extend(job.map(|job| self.read(job)));
    }
}

fn open(request: &EngineRequest<'_>) -> EngineUnderTest {
    let folder = tempfile::tempdir().expect("a directory");
    let open = |(index, bytes): (usize, &Vec<u8>)| {
        let path = folder.path().join(index.to_string());
        write(&path, bytes).expect("the disk has room");
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .expect("just written");
        if let Some(shrink) = request.shrink.filter(|shrink| shrink.source == index) {
            file.set_len(shrink.len as u64).expect("writable");
        }
        (path, file)
    };
    EngineUnderTest {
        engine: Box::new(ReadAt {
            files: request.contents.iter().enumerate().map(open).collect(),
            jobs: VecDeque::new(),
        }),
        alignment: 1,
        remote: false,
        keep: Box::new(folder),
    }
}

#[cfg_attr(test, test)]
fn main() {
    engine_suite("an engine of another crate", &open);
}
