//! Many loads in one process, from every kind of source, while some are cancelled and some fail:
//! the others have the right bytes. Runs for seconds with the other tests, and for any time with
//! `make soak`.

mod counting;
mod loads;
#[path = "../it/overlay.rs"]
mod overlay;
mod places;
mod runs;
