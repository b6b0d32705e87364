//! This command as the host of the crate that writes synthetic checkpoints.

use std::path::PathBuf;

use tload::Result;
use tload_synth::{Host, Temporary};

use crate::interrupt::{self, Interrupt};
use crate::output::progress::Progress;

/// Interrupts the writers, and shows their progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SynthHost<'a> {
    pub(crate) interrupt: &'a Interrupt,
    pub(crate) progress: &'a Progress,
}

impl Host for SynthHost<'_> {
    fn check(&self) -> Result<()> {
        self.interrupt.check()
    }

    fn advance(&self, bytes: u64) {
        self.progress.advance(bytes);
    }

    fn temporary(&self, path: PathBuf) -> Box<dyn Temporary + '_> {
        Box::new(self.interrupt.temporary(path))
    }
}

impl Temporary for interrupt::Temporary<'_> {
    fn keep(self: Box<Self>) {
        interrupt::Temporary::keep(*self);
    }
}
