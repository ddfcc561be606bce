//! `encode`: prints tools in the format of a model API.

use serde_json::json;
use toolwright::models::dialect::translate;
use toolwright::models::tools_json;

use super::args::{ApiName, Encode};
use super::exit::{Done, Exit};
use super::screen::print_json;
use super::tool_file::ToolFile;

/// `{tools, losses, names, quarantined}`. A tool that is left out is no failure: the answer says why.
pub(crate) fn command(encode: &Encode) -> Done {
    let ApiName(api) = encode.api;
    let file = ToolFile::read(&encode.tools)?;
    let set = translate(api.dialect(), &file.shown, encode.strict);
    print_json(&json!({
        "tools": tools_json(api, &set),
        "losses": set.losses,
        "names": file.names(),
        "quarantined": set.quarantined,
    }))?;
    Ok(Exit::Ok)
}
