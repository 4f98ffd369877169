// Files that are dropped on the page. Without this a browser would leave the page and open the file.
import { useEffect, useRef, useState } from "../lib/html.js";

/** Return whether files are being dragged over the page; `onFiles` gets those that are dropped. */
export function useFileDrop(onFiles) {
  const [isDropping, setIsDropping] = useState(false);
  const latest = useRef(onFiles);
  latest.current = onFiles;
  useEffect(() => {
    const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
    const over = (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      setIsDropping(true);
    };
    const leave = (event) => event.relatedTarget === null && setIsDropping(false);
    const drop = (event) => {
      setIsDropping(false);
      if (!hasFiles(event)) return;
      event.preventDefault();
      latest.current([...event.dataTransfer.files]);
    };
    const listeners = { dragover: over, dragleave: leave, drop };
    for (const [name, listener] of Object.entries(listeners)) window.addEventListener(name, listener);
    return () => {
      for (const [name, listener] of Object.entries(listeners)) window.removeEventListener(name, listener);
    };
  }, []);
  return isDropping;
}
