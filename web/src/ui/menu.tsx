import { clsx } from "clsx";
import { DropdownMenu } from "radix-ui";
import type { ReactNode } from "react";

/** A menu below a button. `focus` false leaves the focus where an item's action put it. */
export function Menu({ trigger, children, align = "end", keepFocus }:
  { trigger: ReactNode; children: ReactNode; align?: "start" | "end"; keepFocus?: () => boolean }) {
  return (
    <DropdownMenu.Root modal={false}>
      <DropdownMenu.Trigger asChild>{trigger}</DropdownMenu.Trigger>
      <DropdownMenu.Portal>
        <DropdownMenu.Content
          align={align}
          sideOffset={4}
          collisionPadding={8}
          onCloseAutoFocus={(e) => keepFocus?.() && e.preventDefault()}
          className="z-50 min-w-44 rounded-lg border bg-raised p-1 shadow-float"
        >
          {children}
        </DropdownMenu.Content>
      </DropdownMenu.Portal>
    </DropdownMenu.Root>
  );
}

const item = "flex h-8 cursor-default items-center gap-2 rounded-md px-2 outline-none select-none data-highlighted:bg-hover data-disabled:opacity-45 coarse:h-10 [&_svg]:size-4 [&_svg]:text-faint";

export function MenuItem({ icon, children, onSelect, danger, disabled, hint }:
  { icon?: ReactNode; children: ReactNode; onSelect: () => void; danger?: boolean; disabled?: boolean; hint?: string }) {
  return (
    <DropdownMenu.Item onSelect={onSelect} disabled={disabled} className={clsx(item, danger && "text-bad [&_svg]:text-bad!")}>
      {icon}
      {children}
      {hint && <span className="ml-auto pl-4 text-xs text-faint">{hint}</span>}
    </DropdownMenu.Item>
  );
}

export function MenuChoice<T extends string>({ label, value, options, onChange }:
  { label: string; value: T; options: [T, string, ReactNode?][]; onChange: (v: T) => void }) {
  return (
    <DropdownMenu.RadioGroup value={value} onValueChange={(v) => onChange(v as T)} aria-label={label}>
      <DropdownMenu.Label className="px-2 py-1 text-xs text-faint">{label}</DropdownMenu.Label>
      {options.map(([v, text, icon]) => (
        <DropdownMenu.RadioItem key={v} value={v} className={clsx(item, "data-[state=checked]:font-medium")}>
          {icon}
          {text}
          <DropdownMenu.ItemIndicator className="ml-auto pl-4 text-faint">✓</DropdownMenu.ItemIndicator>
        </DropdownMenu.RadioItem>
      ))}
    </DropdownMenu.RadioGroup>
  );
}

export function MenuLine() {
  return <DropdownMenu.Separator className="my-1 h-px bg-line" />;
}
