"""What a broker must not get wrong although nothing but an unusual client or moment would show it."""
