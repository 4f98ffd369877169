// Sets the chosen theme before the first paint; a classic script, because modules run after it.
try {
  const theme = localStorage.getItem("chairlift.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // Without storage the system's theme stays.
}
