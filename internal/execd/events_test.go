package execd

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// Lines don't depend on how the output was cut into reads.
func FuzzLines(f *testing.F) {
	f.Add("a\r\nb\rc\n\n\r\r\nend", uint8(1), false)
	f.Add("\r", uint8(1), false)
	f.Add("\n\r\n\ra\r\r\n", uint8(2), true)
	f.Fuzz(func(t *testing.T, text string, step uint8, keepCR bool) {
		var want []string
		normal := strings.ReplaceAll(strings.ReplaceAll(text, "\r\n", "\n"), "\r", "\n")
		if keepCR {
			normal = strings.ReplaceAll(text, "\r\n", "\n")
		}
		parts := strings.Split(normal, "\n")
		for i, p := range parts {
			switch {
			case i == len(parts)-1 && p == "":
			case p == "":
				want = append(want, "\n")
			default:
				want = append(want, p)
			}
		}
		var got []string
		l := lineSplitter{keepCR: keepCR}
		keep := func(b []byte) { got = append(got, string(b)) }
		for b := range slices.Chunk([]byte(text), int(step)+1) {
			l.add(b, keep)
		}
		l.finish(keep)
		if !slices.Equal(got, want) {
			t.Errorf("%q by %d: %q, want %q", text, int(step)+1, got, want)
		}
	})
}

// A line that is too long for one event comes in pieces that make it up, and
// that are each what they would be alone.
func TestLongLine(t *testing.T) {
	for name, text := range map[string]string{
		"one more":          strings.Repeat("x", maxEventLine+1),
		"as long as it may": strings.Repeat("x", maxEventLine),
		"CR LF behind it":   strings.Repeat("x", maxEventLine) + "\r",
		"two bytes each":    "x" + strings.Repeat("é", 3*maxEventLine/2),
		"four bytes each":   "xx" + strings.Repeat("\U0001F600", maxEventLine/2),
		"no characters":     strings.Repeat("\x80", 2*maxEventLine+5),
	} {
		for _, step := range []int{64<<10 - 1, 3 * maxEventLine} {
			for _, keepCR := range []bool{false, true} {
				var got []string
				l := lineSplitter{keepCR: keepCR}
				keep := func(b []byte) { got = append(got, string(b)) }
				for b := range slices.Chunk([]byte(text+"\n"), step) {
					l.add(b, keep)
				}
				l.finish(keep)
				want := strings.TrimSuffix(text, "\r")
				if all := strings.Join(got, ""); all != want {
					t.Errorf("%s by %d: %d bytes in %d pieces, want %d bytes", name, step, len(all), len(got), len(want))
				}
				for _, piece := range got {
					if len(piece) > maxEventLine || utf8.ValidString(text) && !utf8.ValidString(piece) {
						t.Errorf("%s by %d: a piece of %d bytes, valid %v", name, step, len(piece), utf8.ValidString(piece))
					}
				}
			}
		}
	}
}

// A text arrives as it was, but for bytes that aren't UTF-8.
func FuzzString(f *testing.F) {
	f.Add("a\"b\\c\n\t\x00<&>é\xff\u2028\U0001F600")
	f.Fuzz(func(t *testing.T, text string) {
		b := appendString(nil, []byte(text))
		var got string
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatalf("%q gives %q: %v", text, b, err)
		}
		var want strings.Builder
		for _, r := range text { // each bad byte becomes one U+FFFD
			want.WriteRune(r)
		}
		if got != want.String() || !utf8.Valid(b) || strings.ContainsAny(string(b), "<>&\n") {
			t.Errorf("%q gives %q", text, b)
		}
	})
}
