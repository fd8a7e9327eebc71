package cli

import (
	"strings"
	"testing"
)

func TestTame(t *testing.T) {
	for in, want := range map[string]string{
		"plain ünïcode\r\n\tx\by":                    "plain ünïcode\r\n\tx\by",
		"\x1b[1;31mred\x1b[0m \x1b[38:5:3mx\x1b[K":   "\x1b[1;31mred\x1b[0m \x1b[38:5:3mx\x1b[K",
		"a\x1b]52;c;cm0gLXJm\ab":                     "ab", // the clipboard
		"a\x1b]0;title\x1b\\b":                       "ab",
		"a\x1b]8;;http://evil\x1b\\link\x1b]8;;\ab":  "alinkb",
		"a\x1b[6nb\x1b[cb\x1b[21tb\x1b[?1049hb":      "abbbb", // what a terminal answers
		"a\x1bP$qm\x1b\\b\x1b_x\x1b\\b\x1b^x\x1b\\b": "abbb",
		"a\u009b6nb\u009d0;t\u009cb\u0085b":          "abbb",
		"a\x1b[>4mb\x1b[2Jb\x1b[Hb\x1bcb\x1b(0b":     "abbbbb",
		"a\x00\x07\x7f\x0eb\x05":                     "ab",
		"a\x1b\x1b[6nb":                              "ab",
		"a\x1b[6\nb":                                 "a\nb",
		"a\x1b[" + strings.Repeat("1;", 100) + "mb":  "a" + strings.Repeat("1;", 100)[129:] + "mb",
		"a\x1b]" + strings.Repeat("x", 5000):         "a" + strings.Repeat("x", 5000-maxControl),
		"a\x1b]0;t\x1b[31mb":                         "a\x1b[31mb",
	} {
		for _, step := range []int{1, 3, 1 << 20} {
			var out strings.Builder
			w := newTame(&out)
			runes := []rune(in)
			for len(runes) > 0 {
				n := min(step, len(runes))
				if _, err := w.Write([]byte(string(runes[:n]))); err != nil {
					t.Fatal(err)
				}
				runes = runes[n:]
			}
			if out.String() != want {
				t.Errorf("%.80q in steps of %d: %.80q, want %.80q", in, step, out.String(), want)
			}
		}
	}
}
