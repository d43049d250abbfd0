// A page that was opened from the disk may not read the search index, and the theme hides the search.
if (location.protocol === "file:") {
  const note = document.createElement("span");
  note.textContent = "Search needs: uv run mkdocs serve";
  document.querySelector(".md-header__inner").append(note);
}
