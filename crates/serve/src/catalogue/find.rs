//! Where runs and suites are below a folder: as `hadal report` finds them.

pub(crate) use hadal_report::find::{Found, find};
