// Records recorded.json: the names of certificates as Java writes them, and principals as Kafka 3.9 maps them.
//   java -cp "$(oracle jars kafka3)" Names.java CERTIFICATES RULES
// CERTIFICATES has a line of base64 (DER) for each certificate; the output is the name in base64.
// RULES has a line for each case: the rules, a tab, the name; the output is =PRINCIPAL or !ERROR.
import java.io.ByteArrayInputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.cert.CertificateFactory;
import java.security.cert.X509Certificate;
import java.util.Base64;
import org.apache.kafka.common.security.ssl.SslPrincipalMapper;

public class Names {
    public static void main(String[] files) throws Exception {
        CertificateFactory factory = CertificateFactory.getInstance("X.509");
        for (String line : Files.readAllLines(Path.of(files[0]))) {
            byte[] der = Base64.getDecoder().decode(line);
            X509Certificate certificate = (X509Certificate) factory.generateCertificate(new ByteArrayInputStream(der));
            byte[] name = certificate.getSubjectX500Principal().getName().getBytes(StandardCharsets.UTF_8);
            System.out.println(Base64.getEncoder().encodeToString(name));
        }
        for (String line : Files.readAllLines(Path.of(files[1]))) {
            String[] parts = line.split("\t", -1);
            try {
                System.out.println("=" + SslPrincipalMapper.fromRules(parts[0]).getName(parts[1]));
            } catch (Exception error) {
                System.out.println("!" + error.getClass().getSimpleName());
            }
        }
    }
}
