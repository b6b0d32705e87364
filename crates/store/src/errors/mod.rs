//! Words for errors: the vocabulary of failed requests, what servers write in error responses, and
//! the removal of secrets from it.

pub(crate) mod classification;
pub(crate) mod error_body;
pub(crate) mod redactor;
