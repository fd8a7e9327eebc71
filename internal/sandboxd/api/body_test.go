package api

import (
	"encoding/json"
	"testing"
)

func TestHalfPair(t *testing.T) {
	for body, want := range map[string]bool{
		`""`: false, `"\n\\"`: false, `"\u00e4"`: false, `"\ufffd"`: false, `"\ud83d\ude00"`: false, `{"\uD83D\uDE00":"\\ud83d"}`: false,
		`"\ud83d"`: true, `"\ude00"`: true, `"\ude00\ud83d"`: true, `"\ud83d\n"`: true, `"\ud83d\u0041"`: true, `"\ud83d\\ude00"`: true,
		`"\ud83d\ud83d\ude00"`: true, `["\ud83d","\ude00"]`: true, `{"\ud83d\ude00\ud83d":1}`: true, `"\\\ud83d"`: true,
	} {
		if !json.Valid([]byte(body)) {
			t.Errorf("%s isn't JSON", body)
		}
		if got := halfPair([]byte(body)); got != want {
			t.Errorf("%s: %v, want %v", body, got, want)
		}
	}
}
