// A page that was opened from the disk may not read the search index.
if (location.protocol === "file:") {
  const query = document.querySelector("[data-md-component=search-query]");
  query.placeholder = "Search needs `uv run mkdocs serve`";
  query.disabled = true;
}
