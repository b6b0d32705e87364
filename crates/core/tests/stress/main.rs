//! Many concurrent loads and copies in one process, from every kind of storage, while some are
//! cancelled and some fail: all others have the right bytes. Runs for seconds with the other tests,
//! and for as long as wanted with `make soak`.

mod copies;
mod counting;
mod loads;
#[path = "../it/overlay.rs"]
mod overlay;
mod places;
mod runs;
