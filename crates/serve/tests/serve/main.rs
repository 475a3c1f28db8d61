//! The server from outside: over real sockets, and in a real browser where there is one.

mod api;
mod browser;
mod chromium;
mod ending;
mod limits;
mod live;
mod odd_files;
mod report;
mod screenshots;
mod security;
mod socket;
mod support;
