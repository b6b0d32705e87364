//! Many loads in one process, from everything that there is to load from, while some are cancelled and some fail: the others have
//! the right bytes. For seconds with every other test, for as long as one likes with `make soak`.

mod counting;
mod loads;
#[path = "../it/overlay.rs"]
mod overlay;
mod places;
mod runs;
