//! The server from outside: over real sockets, and in a real browser where there is one.

mod api;
mod browser;
mod charts;
mod chromium;
mod documents;
mod ending;
mod groups;
mod limits;
mod live;
mod odd_files;
mod report;
mod screenshots;
mod security;
mod socket;
mod support;
