//! Real servers as child processes, on free ports of this machine, with folders of their own.
//!
//! Each type starts one server, waits until it answers, puts objects there and kills it when dropped. What a call needs from
//! the network it does before it returns, so none of them may be used where blocking is forbidden. Errors are texts for a
//! person: a test has nothing to do with them but show them. [`require`] turns a missing server into a loud skip.

mod address;
mod azurite;
mod certificate;
mod fake_gcs;
mod http;
mod nginx;
mod objects;
mod process;
mod s3;
mod tool;
mod toxiproxy;

pub use azurite::Azurite;
pub use fake_gcs::FakeGcs;
pub use nginx::Nginx;
pub use s3::{Moto, S3Server, S3sFs, Versitygw, kind};
pub use tool::{require, require_named, tool};
pub use toxiproxy::{Proxy, Stream, Toxiproxy};
