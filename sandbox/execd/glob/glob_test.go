package glob_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/astrabox/astrabox/sandbox/execd/glob"
)

func TestCompile(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"*.go", "a.go", true}, {"*.go", ".hidden.go", true}, {"*.go", "a.GO", false}, {"a?c", "a\xffc", true},
		{"\xff*", "\xff.go", true}, {"\xfe*", "\xff.go", false}, {"{a,b}*", "bc", true}, {"[a-c]", "d", false},
		{`\*`, "*", true}, {`\*`, "x", false}, {"**", "anything", true}, {"$1", "$1", true},
	} {
		match, err := glob.Compile(c.pattern)
		if err != nil || match(c.name) != c.want {
			t.Errorf("%q on %q: want %v, %v", c.pattern, c.name, c.want, err)
		}
	}
	for _, bad := range []string{"", "[", "{a", strings.Repeat("{a,b}", 20), strings.Repeat("a", glob.MaxPattern+1)} {
		if _, err := glob.Compile(bad); err == nil {
			t.Errorf("%.20q was taken", bad)
		}
	}
}

func ExampleCompile() {
	match, err := glob.Compile("*.{go,mod}")
	fmt.Println(match("main.go"), match("go.sum"), err)
	// Output: true false <nil>
}
