/* Runs before the first paint, as a file of its own because the content security policy
   allows no inline script: a stored theme is applied without a flash of the other one. */
(function () {
  try {
    var stored = localStorage.getItem("holdfast.theme");
    if (stored === "light" || stored === "dark") document.documentElement.dataset.theme = stored;
  } catch (error) {
    /* Storage is blocked: the system's theme applies. */
  }
})();
