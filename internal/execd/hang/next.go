package hang

import (
	"bytes"
	"encoding/binary"
	"io"
)

const (
	headSize = 1 << 10 // what is read at once: most programs' table, and the loader's name
	maxLine  = 256     // of a script's first line, as the kernel reads it
	maxTable = 1 << 16 // bytes of a program's table of segments
	maxName  = 4096    // of a loader
	loader   = 3       // the segment that names it (PT_INTERP)
)

// nextOf gives the file that the kernel opens after this one: the interpreter
// that a script's first line names, or a program's loader; "": none.
func nextOf(f io.ReaderAt) string {
	b := make([]byte, headSize)
	n, err := f.ReadAt(b, 0)
	if err != nil && err != io.EOF {
		return ""
	}
	b = b[:n]
	if line, ok := bytes.CutPrefix(b, []byte("#!")); ok {
		line, _, _ = bytes.Cut(line[:min(len(line), maxLine-len("#!"))], []byte("\n"))
		line = bytes.TrimLeft(line, " \t") // and nothing else: a CR belongs to the name
		if end := bytes.IndexAny(line, " \t\x00"); end >= 0 {
			line = line[:end]
		}
		return string(line)
	}
	return loaderOf(f, b)
}

// loaderOf reads a program for this machine, of 64 or 32 bits.
func loaderOf(f io.ReaderAt, head []byte) string {
	if len(head) < 64 || !bytes.HasPrefix(head, []byte("\x7fELF")) {
		return ""
	}
	order := binary.NativeEndian
	var at, size, count int
	switch head[4] {
	case 1:
		at, size, count = int(order.Uint32(head[28:])), 32, int(order.Uint16(head[44:]))
	case 2:
		at, size, count = int(order.Uint64(head[32:])), 56, int(order.Uint16(head[56:]))
	default:
		return ""
	}
	if size*count > maxTable {
		return ""
	}
	table := part(f, head, at, size*count)
	for ; len(table) >= size; table = table[size:] {
		if order.Uint32(table) != loader {
			continue
		}
		var place, length uint64
		if size == 32 {
			place, length = uint64(order.Uint32(table[4:])), uint64(order.Uint32(table[16:]))
		} else {
			place, length = order.Uint64(table[8:]), order.Uint64(table[32:])
		}
		if length > maxName {
			return ""
		}
		name, _, _ := bytes.Cut(part(f, head, int(place), int(length)), []byte{0})
		return string(name)
	}
	return ""
}

// part gives bytes of a file, nothing where it hasn't all of them.
func part(f io.ReaderAt, head []byte, at, length int) []byte {
	if at >= 0 && at <= len(head) && length <= len(head)-at {
		return head[at : at+length]
	}
	b := make([]byte, length)
	if n, err := f.ReadAt(b, int64(at)); n < length || err != nil && err != io.EOF {
		return nil
	}
	return b
}
