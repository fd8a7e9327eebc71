import { clsx } from "clsx";
import { AlertDialog, Dialog } from "radix-ui";
import type { ReactNode } from "react";

const overlay = "fixed inset-0 z-40 bg-black/30 dark:bg-black/55";
const box = "fixed top-1/2 left-1/2 z-50 max-h-[85dvh] w-[calc(100vw-2rem)] max-w-md -translate-x-1/2 -translate-y-1/2 overflow-auto rounded-xl border bg-raised p-5 shadow-float focus:outline-none";

/** A question that wants an answer. Escape and Cancel are the same. */
export function Question({ open, onClose, title, children, actions, busy }:
  { open: boolean; onClose: () => void; title: string; children: ReactNode; actions: ReactNode; busy?: boolean }) {
  return (
    <AlertDialog.Root open={open} onOpenChange={(o) => !o && !busy && onClose()}>
      <AlertDialog.Portal>
        <AlertDialog.Overlay className={overlay} />
        <AlertDialog.Content className={box} aria-busy={busy}>
          <AlertDialog.Title className="text-base font-semibold">{title}</AlertDialog.Title>
          <AlertDialog.Description asChild>
            <div className="mt-2 text-soft">{children}</div>
          </AlertDialog.Description>
          <div className="mt-5 flex flex-wrap justify-end gap-2">{actions}</div>
        </AlertDialog.Content>
      </AlertDialog.Portal>
    </AlertDialog.Root>
  );
}

export const QuestionCancel = AlertDialog.Cancel;

export function Sheet({ open, onClose, title, children, side }:
  { open: boolean; onClose: () => void; title: string; children: ReactNode; side?: "left" }) {
  return (
    <Dialog.Root open={open} onOpenChange={(o) => !o && onClose()}>
      <Dialog.Portal>
        <Dialog.Overlay className={overlay} />
        <Dialog.Content
          aria-describedby={undefined}
          className={clsx(side === "left" ? "fixed inset-y-0 left-0 z-50 flex w-[min(20rem,85vw)] flex-col border-r bg-side shadow-float focus:outline-none" : box)}
        >
          <Dialog.Title className={side === "left" ? "sr-only" : "text-base font-semibold"}>{title}</Dialog.Title>
          {children}
        </Dialog.Content>
      </Dialog.Portal>
    </Dialog.Root>
  );
}
