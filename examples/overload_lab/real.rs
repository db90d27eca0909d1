//! later
pub fn run() -> Result<(), Box<dyn std::error::Error>> {
    Ok(())
}
