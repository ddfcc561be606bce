//! `stream-order PATH`: checks the stream on standard input against the API served at this path.

use toolwright_testkit::stream_order::check_stream;

fn main() -> Result<(), String> {
    let path = std::env::args().nth(1).unwrap_or_default();
    let stream = std::io::read_to_string(std::io::stdin()).map_err(|error| error.to_string())?;
    check_stream(&path, &stream).map_err(|error| format!("{path}: {error}"))
}
