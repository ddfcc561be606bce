//! `stream-order PATH`: checks the stream on standard input against the API that is served at this path.

use std::io::Read as _;
use std::process::ExitCode;

use toolwright_testkit::stream_order::check_stream;

fn main() -> ExitCode {
    let path = std::env::args().nth(1).unwrap_or_default();
    let mut stream = String::new();
    let read = std::io::stdin().read_to_string(&mut stream).map_err(|error| error.to_string());
    match read.and_then(|_| check_stream(&path, &stream)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{path}: {error}");
            ExitCode::FAILURE
        }
    }
}
