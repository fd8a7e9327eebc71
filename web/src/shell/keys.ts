/** Whether keys belong to what has the focus: a field, the editor, the terminal, a menu. */
export function isTyping(target: EventTarget | null): boolean {
  return target instanceof Element && target.closest("input, textarea, select, [contenteditable], .xterm, [role=menu], [role=dialog], [role=alertdialog]") !== null;
}
