//! Real servers as child processes, on free ports of this machine, with folders of their own.
//!
//! Each type starts one server, waits until it responds, puts objects there and kills it when
//! dropped. Calls do their network requests before they return, so they must not be used where
//! blocking is forbidden. Errors are texts for a person: a test can only show them. [`require`]
//! turns a missing server into a skip with a message.

mod address;
mod azurite;
mod certificate;
mod fake_gcs;
mod http;
mod nginx;
mod objects;
mod process;
mod registry;
mod s3;
mod tool;
mod toxiproxy;

pub use azurite::Azurite;
pub use certificate::Certificate;
pub use fake_gcs::FakeGcs;
pub use nginx::Nginx;
pub use registry::{Guard, Registry};
pub use s3::{Moto, S3Server, S3sFs, Versitygw, kind};
pub use tool::{require, require_named, tool};
pub use toxiproxy::{Proxy, Stream, Toxiproxy};
